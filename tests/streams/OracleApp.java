import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * An application whose every cut can be judged from its topics alone (tests/recovery/oracle.py).
 *
 * <pre>
 * orders -> by-customer (repartition) -> store totals -> totals
 * quiet  -> store ticks, written by a wall-clock punctuator only -> ticks (with --punctuate-ms)
 * </pre>
 *
 * An order is "customer,amount", a total "count,sum", a tick a counter; all are ASCII. Only what
 * Kafka Streams 3.9 and 4.4 have in common is used.
 */
public final class OracleApp {
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(30);

    private OracleApp() {}

    public static void main(String[] arguments) throws InterruptedException {
        Options options = new Options(arguments);
        CountDownLatch failed = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(topology(options), options.settings);
        streams.setStateListener((now, before) -> say("STATE " + now));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            failed.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        // The instance stays a member until its session times out: 3.9 has no other way of closing.
        Runtime.getRuntime().addShutdownHook(new Thread(
                () -> say(streams.close(CLOSE_TIMEOUT) ? "CLOSED" : "NOT CLOSED IN TIME")));
        streams.start();
        failed.await();
        System.exit(1);
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static Topology topology(Options options) {
        Serde<String> text = Serdes.String();
        Serde<byte[]> raw = Serdes.ByteArray();
        String prefix = options.topicPrefix;
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(prefix + "orders", Consumed.with(text, raw).withName("orders-source"))
                .filter((id, order) -> comma(order) > 0, Named.as("valid-orders"))
                .selectKey((id, order) -> customer(order), Named.as("customer-of-order"))
                .repartition(Repartitioned.with(text, raw).withName("by-customer"))
                .groupByKey(Grouped.with(text, raw))
                .aggregate(
                        () -> bytes("0,0"),
                        (customer, order, total) -> add(total, order),
                        Named.as("add-order"),
                        Materialized.<String, byte[], KeyValueStore<Bytes, byte[]>>as("totals")
                                .withKeySerde(text)
                                .withValueSerde(raw))
                .toStream(Named.as("changed-totals"))
                .to(prefix + "totals", Produced.with(text, raw).withName("totals-sink"));
        if (options.punctuateMs > 0) {
            KStream<String, byte[]> quiet =
                    builder.stream(prefix + "quiet", Consumed.with(text, raw).withName("quiet-source"));
            quiet.process(new Ticks(Duration.ofMillis(options.punctuateMs)), Named.as("tick"))
                    .to(prefix + "ticks", Produced.with(text, raw).withName("ticks-sink"));
        }
        return builder.build(options.settings);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    /** The position of the comma, -1 if the value is no order. */
    private static int comma(byte[] value) {
        for (int i = 0; value != null && i < value.length; i++) {
            if (value[i] == ',') {
                return i;
            }
        }
        return -1;
    }

    private static String customer(byte[] order) {
        return new String(order, 0, comma(order), StandardCharsets.US_ASCII);
    }

    private static long numberAfterComma(byte[] value) {
        int comma = comma(value);
        return Long.parseLong(
                new String(value, comma + 1, value.length - comma - 1, StandardCharsets.US_ASCII));
    }

    private static byte[] add(byte[] total, byte[] order) {
        long count = Long.parseLong(customer(total));
        return bytes((count + 1) + "," + (numberAfterComma(total) + numberAfterComma(order)));
    }

    /** Counts on by the clock, per task, whatever is read; what is read is dropped. */
    private record Ticks(Duration interval) implements ProcessorSupplier<String, byte[], String, byte[]> {
        private static final String STORE = "ticks";

        @Override
        public Set<StoreBuilder<?>> stores() {
            return Set.of(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore(STORE), Serdes.String(), Serdes.ByteArray()));
        }

        @Override
        public Processor<String, byte[], String, byte[]> get() {
            return new Processor<>() {
                @Override
                public void init(ProcessorContext<String, byte[]> context) {
                    KeyValueStore<String, byte[]> store = context.getStateStore(STORE);
                    String key = "task-" + context.taskId().partition();
                    context.schedule(interval, PunctuationType.WALL_CLOCK_TIME, now -> {
                        byte[] before = store.get(key);
                        long counter = before == null
                                ? 0
                                : Long.parseLong(new String(before, StandardCharsets.US_ASCII));
                        byte[] after = bytes(Long.toString(counter + 1));
                        store.put(key, after);
                        context.forward(new Record<>(key, after, now));
                    });
                }

                @Override
                public void process(Record<String, byte[]> ignored) {}
            };
        }
    }

    /** The command line: pairs of an option and its value. */
    private static final class Options {
        private static final Map<String, String> SETTINGS = Map.of(
                "--bootstrap", StreamsConfig.BOOTSTRAP_SERVERS_CONFIG,
                "--application-id", StreamsConfig.APPLICATION_ID_CONFIG,
                "--guarantee", StreamsConfig.PROCESSING_GUARANTEE_CONFIG,
                "--state-dir", StreamsConfig.STATE_DIR_CONFIG,
                "--commit-interval-ms", StreamsConfig.COMMIT_INTERVAL_MS_CONFIG,
                "--threads", StreamsConfig.NUM_STREAM_THREADS_CONFIG);

        final Properties settings = new Properties();
        String topicPrefix = "";
        long punctuateMs;

        Options(String[] arguments) {
            settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
            // Without a cache every update is one changelog record and one output record.
            settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
            for (int i = 0; i + 1 < arguments.length; i += 2) {
                take(arguments[i], arguments[i + 1]);
            }
        }

        private void take(String name, String value) {
            int equals = value.indexOf('=');
            if (SETTINGS.containsKey(name)) {
                settings.put(SETTINGS.get(name), value);
            } else if (name.equals("--topic-prefix")) {
                topicPrefix = value;
            } else if (name.equals("--punctuate-ms")) {
                punctuateMs = Long.parseLong(value);
            } else if (name.equals("--config") && equals > 0) {
                settings.put(value.substring(0, equals), value.substring(equals + 1));
            } else {
                throw new IllegalArgumentException("Unknown option: " + name + " " + value);
            }
        }
    }
}
