import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.StreamPartitioner;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStoreWithHeaders;
import org.apache.kafka.streams.state.ValueTimestampHeaders;
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
 * With {@code --joins true} also:
 *
 * <pre>
 * by-sensor x calibrations (versioned table) x units (global table)   -> described
 * by-sensor -> store traces (with headers: those of the reading before) -> traced
 * store alarms x places (table), by foreign key -> store alerts       -> alerts
 * </pre>
 *
 * A reading has the value "place/sensor,number", a sum "count,sum"; all are ASCII. The place is the
 * number of a partition, and everything stays in the partition of its place: each partition then
 * has a single writer, so that all outputs follow from the readings and their timestamps alone.
 */
public final class WideApp {
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(30);
    private static final Duration CLOSED_WINDOWS_STAY = Duration.ofMinutes(30);
    private static final Duration CALIBRATION_HISTORY = Duration.ofHours(3);
    private static final int ALARM = 90;
    private static final String TRACE = "trace";

    private WideApp() {}

    public static void main(String[] arguments) throws InterruptedException, ExecutionException {
        Options options = new Options(arguments);
        if (options.describe) {
            System.out.print(topology(options).describe());
            return;
        }
        configureGroup(options.settings);
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
        Thread reporter = new Thread(() -> reportTasks(streams));
        reporter.setDaemon(true);
        reporter.start();
        failed.await();
        System.exit(1);
    }

    /** With the streams protocol the group has the number of standby replicas, at the broker. */
    private static void configureGroup(Properties settings) throws InterruptedException, ExecutionException {
        String standbys = settings.getProperty(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG);
        if (standbys == null || !"streams".equals(settings.getProperty(StreamsConfig.GROUP_PROTOCOL_CONFIG))) {
            return;
        }
        ConfigResource group = new ConfigResource(
                ConfigResource.Type.GROUP, settings.getProperty(StreamsConfig.APPLICATION_ID_CONFIG));
        AlterConfigOp set = new AlterConfigOp(
                new ConfigEntry("streams.num.standby.replicas", standbys), AlterConfigOp.OpType.SET);
        String servers = settings.getProperty(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG);
        try (Admin admin = Admin.create(Map.of(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers))) {
            admin.incrementalAlterConfigs(Map.of(group, List.of(set))).all().get();
        }
        settings.remove(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG);
    }

    /** Writes "TASKS active,standby" whenever the tasks of this instance have changed. */
    private static void reportTasks(KafkaStreams streams) {
        String before = "";
        try {
            while (true) {
                int active = 0;
                int standby = 0;
                for (ThreadMetadata thread : streams.metadataForLocalThreads()) {
                    active += thread.activeTasks().size();
                    standby += thread.standbyTasks().size();
                }
                String now = "TASKS " + active + "," + standby;
                if (!now.equals(before)) {
                    say(now);
                    before = now;
                }
                Thread.sleep(200);
            }
        } catch (IllegalStateException | InterruptedException closed) {
            // The instance is not running (yet, or any more).
        }
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
        KTable<String, String> alarms = added(raised.groupByKey(Grouped.with(text, text)), "alarms");
        alarms.toStream(Named.as("changed-alarms")).to(prefix + "alarms", produced.withName("alarms-sink"));
        if (options.joins) {
            joins(builder, prefix, readings, alarms);
        }
        return builder.build(options.settings);
    }

    private static void joins(
            StreamsBuilder builder, String prefix, KStream<String, String> readings, KTable<String, String> alarms) {
        Serde<String> text = Serdes.String();
        Produced<String, String> produced = Produced.with(text, text);
        KTable<String, String> calibrations = builder.table(
                prefix + "calibrations",
                Consumed.with(text, text).withName("calibrations-source"),
                Materialized.<String, String>as(
                                Stores.persistentVersionedKeyValueStore("calibrations", CALIBRATION_HISTORY))
                        .withKeySerde(text)
                        .withValueSerde(text));
        GlobalKTable<String, String> units =
                builder.globalTable(prefix + "units", Consumed.with(text, text).withName("units-source"));
        readings.leftJoin(
                        calibrations,
                        (number, calibration) -> number + "," + calibration,
                        Joined.with(text, text, text, "calibrated"))
                .leftJoin(
                        units,
                        (sensor, reading) -> before(sensor, '/'),
                        (reading, unit) -> reading + "," + unit,
                        Named.as("with-unit"))
                .to(prefix + "described", produced.withName("described-sink"));

        builder.addStateStore(Stores.timestampedKeyValueStoreWithHeadersBuilder(
                Stores.persistentTimestampedKeyValueStoreWithHeaders("traces"), text, text));
        readings.processValues(TraceBefore::new, Named.as("trace-before"), "traces")
                .to(prefix + "traced", produced.withName("traced-sink"));

        KTable<String, String> places = builder.table(
                prefix + "places", Consumed.with(text, text).withName("places-source"), inTable("places"));
        alarms.join(
                        places,
                        (sensor, sum) -> before(sensor, '/'),
                        (sum, place) -> sum + "," + place,
                        TableJoined.<String, String>with(
                                        (topic, sensor, nothing, partitions) ->
                                                BY_PLACE.partitions(topic, sensor, null, partitions),
                                        (topic, place, nothing, partitions) ->
                                                Optional.of(Set.of(Integer.parseInt(place) % partitions)))
                                .withName("placed"),
                        inTable("alerts"))
                .toStream(Named.as("changed-alerts"))
                .to(prefix + "alerts", produced.withName("alerts-sink"));
    }

    private static Materialized<String, String, KeyValueStore<Bytes, byte[]>> inTable(String store) {
        return Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(store)
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.String());
    }

    /** The trace of the sensor's reading before this one; it is in the headers of the store alone. */
    private static final class TraceBefore extends ContextualFixedKeyProcessor<String, String, String> {
        private TimestampedKeyValueStoreWithHeaders<String, String> traces;

        @Override
        public void init(FixedKeyProcessorContext<String, String> context) {
            super.init(context);
            traces = context.getStateStore("traces");
        }

        @Override
        public void process(FixedKeyRecord<String, String> reading) {
            ValueTimestampHeaders<String> before = traces.get(reading.key());
            Header trace = before == null ? null : before.headers().lastHeader(TRACE);
            traces.put(
                    reading.key(),
                    ValueTimestampHeaders.make(reading.value(), reading.timestamp(), reading.headers()));
            context().forward(reading.withValue(
                    trace == null ? "none" : new String(trace.value(), StandardCharsets.UTF_8)));
        }
    }

    private static final StreamPartitioner<String, String> BY_PLACE = (topic, sensor, value, partitions) ->
            Optional.of(Set.of(Integer.parseInt(before(sensor, '/')) % partitions));

    private static KTable<String, String> added(KGroupedStream<String, String> grouped, String store) {
        return grouped.aggregate(
                () -> "0,0",
                (sensor, number, sum) -> add(sum, number),
                Named.as("add-to-" + store),
                inTable(store));
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
        boolean joins;
        boolean describe;

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
            } else if (name.equals("--joins")) {
                joins = Boolean.parseBoolean(value);
            } else if (name.equals("--describe")) {
                describe = Boolean.parseBoolean(value);
            } else if (name.equals("--config") && equals > 0) {
                settings.put(value.substring(0, equals), value.substring(equals + 1));
            } else {
                throw new IllegalArgumentException("Unknown option: " + name + " " + value);
            }
        }
    }
}
