import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
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
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.StreamPartitioner;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * An application with one of each kind of state that a restore has to bring back.
 *
 * <pre>
 * readings -> by-sensor (repartition) -> store sums                              -> sums
 *                                     -> windows per-window -> suppress final    -> finals
 *                                     -> windows closing (emitted when closed)   -> closed
 *                                     -> alarms-raised (intermediate) -> store alarms -> alarms
 * </pre>
 *
 * A reading has the value "place/sensor,number", a sum "count,sum"; all are ASCII. The place is the
 * number of a partition, and everything stays in the partition of its place: each partition then
 * has a single writer, so that all outputs follow from the readings and their timestamps alone.
 */
public final class WideApp {
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(30);
    private static final Duration CLOSED_WINDOWS_STAY = Duration.ofMinutes(30);
    private static final int ALARM = 90;

    private WideApp() {}

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
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            boolean closed = streams.close(CloseOptions.timeout(CLOSE_TIMEOUT)
                    .withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
            say(closed ? "CLOSED" : "NOT CLOSED IN TIME");
        }));
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
        String prefix = options.topicPrefix;
        Produced<String, String> produced = Produced.with(text, text);
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> readings = builder
                .stream(prefix + "readings", Consumed.with(text, text).withName("readings-source"))
                .selectKey((id, reading) -> before(reading, ','), Named.as("sensor-of-reading"))
                .mapValues(reading -> after(reading, ','), Named.as("number-of-reading"))
                .repartition(Repartitioned.with(text, text)
                        .withName("by-sensor")
                        .withStreamPartitioner(BY_PLACE));
        KGroupedStream<String, String> grouped = readings.groupByKey(Grouped.with(text, text));
        TimeWindows windows = TimeWindows.ofSizeAndGrace(
                Duration.ofMillis(options.windowMs), Duration.ofMillis(options.graceMs));

        added(grouped, "sums").toStream(Named.as("changed-sums"))
                .to(prefix + "sums", produced.withName("sums-sink"));
        grouped.windowedBy(windows)
                .aggregate(
                        () -> "0,0",
                        (sensor, number, sum) -> add(sum, number),
                        Named.as("add-in-window"),
                        kept("per-window"))
                .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()).withName("final"))
                .toStream((window, sum) -> named(window), Named.as("final-sums"))
                .to(prefix + "finals", produced.withName("finals-sink"));
        grouped.windowedBy(windows)
                .emitStrategy(EmitStrategy.onWindowClose())
                .aggregate(
                        () -> "0,0",
                        (sensor, number, sum) -> add(sum, number),
                        Named.as("add-until-closed"),
                        // Closed windows stay for queries: they must not be emitted once more.
                        kept("closing").withRetention(CLOSED_WINDOWS_STAY))
                .toStream((window, sum) -> named(window), Named.as("closed-sums"))
                .to(prefix + "closed", produced.withName("closed-sink"));
        readings.filter((sensor, number) -> Integer.parseInt(number) >= ALARM, Named.as("is-alarm"))
                .to(prefix + "alarms-raised", produced.withStreamPartitioner(BY_PLACE).withName("raised-sink"));
        KStream<String, String> raised = builder
                .stream(prefix + "alarms-raised", Consumed.with(text, text).withName("raised-source"));
        added(raised.groupByKey(Grouped.with(text, text)), "alarms").toStream(Named.as("changed-alarms"))
                .to(prefix + "alarms", produced.withName("alarms-sink"));
        return builder.build(options.settings);
    }

    private static final StreamPartitioner<String, String> BY_PLACE = (topic, sensor, value, partitions) ->
            Optional.of(Set.of(Integer.parseInt(before(sensor, '/')) % partitions));

    private static KTable<String, String> added(KGroupedStream<String, String> grouped, String store) {
        return grouped.aggregate(
                () -> "0,0",
                (sensor, number, sum) -> add(sum, number),
                Named.as("add-to-" + store),
                Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(store)
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.String()));
    }

    private static Materialized<String, String, WindowStore<Bytes, byte[]>> kept(String store) {
        return Materialized.<String, String, WindowStore<Bytes, byte[]>>as(store)
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.String());
    }

    private static String named(Windowed<String> window) {
        return window.key() + "@" + window.window().start();
    }

    private static String before(String text, char separator) {
        return text.substring(0, text.indexOf(separator));
    }

    private static String after(String text, char separator) {
        return text.substring(text.indexOf(separator) + 1);
    }

    private static String add(String sum, String number) {
        long count = Long.parseLong(before(sum, ','));
        return (count + 1) + "," + (Long.parseLong(after(sum, ',')) + Long.parseLong(number));
    }

    /** The command line: pairs of an option and its value. */
    private static final class Options {
        private static final Map<String, String> SETTINGS = Map.of(
                "--bootstrap", StreamsConfig.BOOTSTRAP_SERVERS_CONFIG,
                "--application-id", StreamsConfig.APPLICATION_ID_CONFIG,
                "--state-dir", StreamsConfig.STATE_DIR_CONFIG,
                "--commit-interval-ms", StreamsConfig.COMMIT_INTERVAL_MS_CONFIG,
                "--threads", StreamsConfig.NUM_STREAM_THREADS_CONFIG);

        final Properties settings = new Properties();
        String topicPrefix = "";
        long windowMs = 10_000;
        long graceMs = 2_000;

        Options(String[] arguments) {
            settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
            // Without a cache every update is one changelog record and one output record.
            settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
            // Else closed windows are looked for once a second by the clock.
            settings.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_WINDOWED_AGGREGATION, 0L);
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
            } else if (name.equals("--window-ms")) {
                windowMs = Long.parseLong(value);
            } else if (name.equals("--grace-ms")) {
                graceMs = Long.parseLong(value);
            } else if (name.equals("--config") && equals > 0) {
                settings.put(value.substring(0, equals), value.substring(equals + 1));
            } else {
                throw new IllegalArgumentException("Unknown option: " + name + " " + value);
            }
        }
    }
}
