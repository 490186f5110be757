import java.time.Duration;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.UUID;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Prints bytes as Kafka's own serializers write them, one line each, fields between tabs:
 *
 * <p>{@code serde NAME HEX}; {@code DEFAULT TOPIC TIMESTAMP HEADER_V KEY VALUE HEADERS} for each record of
 * the changelogs of one topology, with the names of its headers, and {@code HEADERS TOPIC ...} with that
 * {@code dsl.store.format}; {@code parsed HEX TIME PRIOR OLD NEW} for each argument {@code V:HEX}, a
 * buffer value of an older version, as Kafka Streams itself reads it. {@code -} stands for null.
 */
public final class WriteFormats {
    private static final Duration SECOND = Duration.ofSeconds(1);

    private WriteFormats() {}

    public static void main(String[] arguments) throws ReflectiveOperationException {
        serdes();
        changelogs(StreamsConfig.DSL_STORE_FORMAT_DEFAULT);
        changelogs(StreamsConfig.DSL_STORE_FORMAT_HEADERS);
        for (String argument : arguments) {
            parse(argument);
        }
    }

    private static void serdes() {
        write("long", Serdes.Long(), Long.MIN_VALUE, -1L, 0L, 1L, Long.MAX_VALUE);
        write("int", Serdes.Integer(), Integer.MIN_VALUE, -1, 0, 1, Integer.MAX_VALUE);
        write("short", Serdes.Short(), Short.MIN_VALUE, (short) -1, (short) 0, Short.MAX_VALUE);
        write("double", Serdes.Double(), -0.0, 1.5, -Math.PI, Double.MIN_VALUE, Double.MIN_NORMAL,
                Double.MAX_VALUE, Double.NEGATIVE_INFINITY, Double.NaN);
        write("float", Serdes.Float(), -0.0f, 1.5f, 0.1f, Float.MIN_VALUE, Float.MIN_NORMAL, Float.MAX_VALUE,
                Float.NEGATIVE_INFINITY, Float.NaN);
        write("string", Serdes.String(), "", "plain", "\u00e4\u4e16\ud83d\ude00", "a\u0000b");
        write("uuid", Serdes.UUID(), new UUID(0xfedcba9876543210L, 1), new UUID(0, 0));
    }

    @SafeVarargs
    private static <T> void write(String name, Serde<T> serde, T... values) {
        for (T value : values) {
            line("serde", name, hex(serde.serializer().serialize("topic", value)));
        }
    }

    private static void changelogs(String format) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, Long> left = builder.stream("left", Consumed.with(Serdes.String(), Serdes.Long()));
        KStream<String, Long> right = builder.stream("right", Consumed.with(Serdes.String(), Serdes.Long()));
        Grouped<String, Long> grouped = Grouped.with(Serdes.String(), Serdes.Long());
        var windows = left.groupByKey(grouped).windowedBy(TimeWindows.ofSizeAndGrace(SECOND, SECOND))
                .reduce(Long::sum, Materialized.as("windows"));
        windows.suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()).withName("closed"));
        left.groupByKey(grouped).windowedBy(SessionWindows.ofInactivityGapAndGrace(SECOND, SECOND))
                .reduce(Long::sum, Materialized.as("sessions"));
        left.outerJoin(right, (a, b) -> a == null ? b : a, JoinWindows.ofTimeDifferenceAndGrace(SECOND, SECOND),
                StreamJoined.with(Serdes.String(), Serdes.Long(), Serdes.Long()).withStoreName("sides"));
        KTable<String, Long> counts = left.groupByKey(grouped).reduce(Long::sum, Materialized.as("sums"));
        counts.suppress(Suppressed.untilTimeLimit(Duration.ofHours(1), Suppressed.BufferConfig.unbounded())
                .withName("later"));
        KTable<Integer, Long> rates = builder.table("rates", Consumed.with(Serdes.Integer(), Serdes.Long()));
        counts.join(rates, Long::intValue, Long::sum, TableJoined.as("with-rate"),
                Materialized.with(Serdes.String(), Serdes.Long()));
        KTable<String, Long> prices = builder.table("prices", Consumed.with(Serdes.String(), Serdes.Long()),
                Materialized.as(Stores.persistentVersionedKeyValueStore("prices", Duration.ofHours(1))));
        right.join(prices, Long::sum, Joined.with(Serdes.String(), Serdes.Long(), Serdes.Long(), "priced", SECOND));
        Properties config = new Properties();
        config.putAll(Map.of(StreamsConfig.APPLICATION_ID_CONFIG, "app", StreamsConfig.BOOTSTRAP_SERVERS_CONFIG,
                "localhost:1", StreamsConfig.DSL_STORE_FORMAT_CONFIG, format, StreamsConfig.STATE_DIR_CONFIG, System.getProperty("java.io.tmpdir"),
                StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass(),
                StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.Long().getClass()));
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), config)) {
            pipe(driver);
            for (String topic : driver.producedTopicNames()) {
                if (topic.endsWith("-changelog")) {
                    var output = driver.createOutputTopic(topic, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                    output.readRecordsToList().forEach(each -> record(format, topic, each));
                }
            }
        }
    }

    private static void pipe(TopologyTestDriver driver) {
        TestInputTopic<String, Long> left =
                driver.createInputTopic("left", Serdes.String().serializer(), Serdes.Long().serializer());
        TestInputTopic<String, Long> right =
                driver.createInputTopic("right", Serdes.String().serializer(), Serdes.Long().serializer());
        RecordHeaders headers = new RecordHeaders();
        headers.add("trace", new byte[] {1, 2}).add("empty", null);
        left.pipeInput(new TestRecord<>("k", 7L, headers, 1_500L));
        left.pipeInput(new TestRecord<>("k", -9L, new RecordHeaders(), 1_600L));
        left.pipeInput(new TestRecord<>("late", 7L, new RecordHeaders(), 1_700L));
        right.pipeInput(new TestRecord<>("r", 5L, new RecordHeaders(), 1_800L));
        right.pipeInput(new TestRecord<>("r", 6L, headers, 1_800L));
        TestInputTopic<String, Long> prices =
                driver.createInputTopic("prices", Serdes.String().serializer(), Serdes.Long().serializer());
        prices.pipeInput(new TestRecord<>("p", 3L, headers, 1_900L));
        prices.pipeInput(new TestRecord<>("p", null, headers, 1_200L));
    }

    private static void record(String format, String topic, TestRecord<byte[], byte[]> each) {
        Header version = each.headers().lastHeader("v");
        String names = Arrays.stream(each.headers().toArray()).map(Header::key).collect(Collectors.joining(","));
        line(format, topic, each.timestamp(), version == null ? "-" : hex(version.value()), hex(each.key()),
                hex(each.value()), names);
    }

    private static void parse(String argument) throws ReflectiveOperationException {
        String hex = argument.substring(2);
        var record = new ConsumerRecord<>("t", 0, 0L, 0L, TimestampType.CREATE_TIME, 0, 0, new byte[0],
                HexFormat.of().parseHex(hex), new RecordHeaders(), Optional.empty());
        Class<?> helper = Class.forName(
                "org.apache.kafka.streams.state.internals.TimeOrderedKeyValueBufferChangelogDeserializationHelper");
        String name = argument.charAt(0) == '2' ? "duckTypeV2" : "deserializeV" + argument.charAt(0);
        for (var method : helper.getDeclaredMethods()) {
            if (method.getName().equals(name)) {
                method.setAccessible(true);
                Bytes key = Bytes.wrap(new byte[0]);
                Object result = method.getParameterCount() == 2
                        ? method.invoke(null, record, key)
                        : method.invoke(null, record, key, null);
                Object value = call(result, "bufferValue");
                line("parsed", hex, call(result, "time"), hex((byte[]) call(value, "priorValue")),
                        hex((byte[]) call(value, "oldValue")), hex((byte[]) call(value, "newValue")));
            }
        }
    }

    private static Object call(Object target, String name) throws ReflectiveOperationException {
        var method = target.getClass().getDeclaredMethod(name);
        method.setAccessible(true);
        return method.invoke(target);
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "-" : HexFormat.of().formatHex(bytes);
    }

    private static void line(Object... fields) {
        System.out.println(String.join("\t", Arrays.stream(fields).map(String::valueOf).toList()));
    }
}
