import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Adds up the orders of each customer.
 *
 * <pre>
 * orders -> valid    -> by customer (repartition) -> store order-totals -> customer-totals
 *        -> rejected -> orders-rejected, unchanged, with the header "reason"
 * </pre>
 *
 * Run with: java -cp "&lt;jars&gt;/*" OrderProcessor.java --bootstrap host:port
 */
public final class OrderProcessor {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(30);

    private OrderProcessor() {}

    public static void main(String[] arguments) throws InterruptedException {
        Options options;
        try {
            options = Options.parse(arguments);
        } catch (IllegalArgumentException e) {
            System.err.println(e.getMessage());
            System.err.println(Options.USAGE);
            System.exit(2);
            return;
        }
        Topology topology = topology(options.topicPrefix, options.settings);
        if (options.describe) {
            System.out.print(topology.describe());
            return;
        }
        System.exit(run(topology, options.settings));
    }

    /** Runs until SIGTERM (the process then ends with 143) or an error; returns the exit code. */
    private static int run(Topology topology, Properties settings) throws InterruptedException {
        CountDownLatch failed = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(topology, settings);
        streams.setStateListener((now, before) -> say("STATE " + now));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            failed.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            // Leaving the group at once lets a successor start without waiting for a timeout.
            boolean closed = streams.close(CloseOptions.timeout(CLOSE_TIMEOUT)
                    .withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
            say(closed ? "CLOSED" : "NOT CLOSED IN TIME");
        }));
        streams.start();
        failed.await();
        return 1;
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static Topology topology(String prefix, Properties settings) {
        Serde<String> text = Serdes.String();
        Serde<byte[]> raw = Serdes.ByteArray();
        StreamsBuilder builder = new StreamsBuilder();
        Map<String, KStream<String, byte[]>> branches = builder
                .stream(prefix + "orders", Consumed.with(text, raw).withName("orders-source"))
                .split(Named.as("orders-"))
                .branch((id, value) -> Order.read(value).rejection() == null, Branched.as("valid"))
                .defaultBranch(Branched.as("rejected"));
        branches.get("orders-valid")
                .selectKey((id, value) -> Order.read(value).customer(), Named.as("customer-of-order"))
                .groupByKey(Grouped.with("orders-by-customer", text, raw))
                .aggregate(
                        () -> total(0, 0),
                        (customer, order, total) -> add(total, Order.read(order).amountCents()),
                        Named.as("add-order"),
                        Materialized.<String, byte[], KeyValueStore<Bytes, byte[]>>as("order-totals")
                                .withKeySerde(text)
                                .withValueSerde(raw))
                .toStream(Named.as("changed-totals"))
                .to(prefix + "customer-totals", Produced.with(text, raw).withName("customer-totals-sink"));
        branches.get("orders-rejected")
                .processValues(AddReason::new, Named.as("add-reason"))
                .to(prefix + "orders-rejected", Produced.with(text, raw).withName("orders-rejected-sink"));
        return builder.build(settings);
    }

    private static byte[] total(long count, long cents) {
        return ("{\"count\":" + count + ",\"total_cents\":" + cents + "}").getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] add(byte[] total, long cents) {
        try {
            JsonNode before = JSON.readTree(total);
            return total(before.get("count").longValue() + 1, before.get("total_cents").longValue() + cents);
        } catch (IOException e) {
            throw new IllegalStateException("not a total: " + new String(total, StandardCharsets.UTF_8), e);
        }
    }

    /** An order, or the reason why it is none ({@code rejection} is null for a valid order). */
    record Order(String customer, long amountCents, String rejection) {
        static Order read(byte[] value) {
            if (value == null) {
                return rejected("no value");
            }
            JsonNode order;
            try {
                order = JSON.readTree(value);
            } catch (IOException e) {
                return rejected("not JSON");
            }
            JsonNode customer = order.path("customer_id");
            JsonNode amount = order.path("amount_cents");
            if (!customer.isTextual() || customer.textValue().isEmpty()) {
                return rejected("no customer");
            }
            if (!amount.isIntegralNumber() || !amount.canConvertToLong() || amount.longValue() <= 0) {
                return rejected("no positive amount");
            }
            return new Order(customer.textValue(), amount.longValue(), null);
        }

        private static Order rejected(String reason) {
            return new Order(null, 0, reason);
        }
    }

    /** Forwards a rejected order as it came, with the reason in a header. */
    static final class AddReason implements FixedKeyProcessor<String, byte[], byte[]> {
        private FixedKeyProcessorContext<String, byte[]> context;

        @Override
        public void init(FixedKeyProcessorContext<String, byte[]> context) {
            this.context = context;
        }

        @Override
        public void process(FixedKeyRecord<String, byte[]> order) {
            String reason = Order.read(order.value()).rejection();
            order.headers().add("reason", reason.getBytes(StandardCharsets.UTF_8));
            context.forward(order);
        }
    }

    /** The command line. */
    private static final class Options {
        static final String USAGE = """
                Usage: OrderProcessor --bootstrap <host:port,...> [--application-id orders]
                    [--guarantee exactly_once_v2|at_least_once] [--state-dir <folder>]
                    [--commit-interval-ms <n>] [--threads <n>] [--topic-prefix <text>]
                    [--config <key>=<value>]...
                       OrderProcessor --describe [--topic-prefix <text>] [--config <key>=<value>]...""";
        private static final Map<String, String> SETTINGS = Map.of(
                "--bootstrap", StreamsConfig.BOOTSTRAP_SERVERS_CONFIG,
                "--application-id", StreamsConfig.APPLICATION_ID_CONFIG,
                "--guarantee", StreamsConfig.PROCESSING_GUARANTEE_CONFIG,
                "--state-dir", StreamsConfig.STATE_DIR_CONFIG,
                "--commit-interval-ms", StreamsConfig.COMMIT_INTERVAL_MS_CONFIG,
                "--threads", StreamsConfig.NUM_STREAM_THREADS_CONFIG);

        final Properties settings = new Properties();
        String topicPrefix = "";
        boolean describe;

        static Options parse(String[] arguments) {
            Options options = new Options();
            options.settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "orders");
            options.settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
            for (int i = 0; i < arguments.length; i++) {
                String name = arguments[i];
                if (name.equals("--describe")) {
                    options.describe = true;
                    continue;
                }
                if (i + 1 == arguments.length) {
                    throw new IllegalArgumentException("Unknown option or value missing: " + name);
                }
                options.take(name, arguments[++i]);
            }
            if (!options.describe && !options.settings.containsKey(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG)) {
                throw new IllegalArgumentException("--bootstrap is missing");
            }
            return options;
        }

        private void take(String name, String value) {
            if (SETTINGS.containsKey(name)) {
                settings.put(SETTINGS.get(name), value);
            } else if (name.equals("--topic-prefix")) {
                topicPrefix = value;
            } else if (name.equals("--config") && value.indexOf('=') > 0) {
                int equals = value.indexOf('=');
                settings.put(value.substring(0, equals), value.substring(equals + 1));
            } else {
                throw new IllegalArgumentException("Unknown option: " + name + " " + value);
            }
        }
    }
}
