import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.stream.LongStream;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TopologyConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * An at-least-once application in three levels, whose every cut can be judged from its topics
 * (tests/recovery/vector_oracle.py).
 *
 * <pre>
 * orders -> by-customer (repartition) -> store totals -> customer-totals
 *        totals -> by-group (repartition) -> store groups -> group-totals
 * </pre>
 *
 * <p>With the property <code>with.regions</code>, orders are joined with a global table, which changes
 * nothing. With <code>with.shared</code>, groups are written to customer-totals too: two levels write
 * one topic. With <code>with.feedback</code>, each tenth order of a customer below 100 orders something
 * for the customer with a number higher by 100: a cycle.
 *
 * <p>An order is "customer,partition,id". A value is a vector: how many orders of each input partition
 * it has counted, so that a repeat in one partition cannot hide a loss in another. Arguments: a
 * prefix of the topics' names, then names and values of properties.
 */
public final class VectorApp {
    private static final int PARTITIONS = 4;
    private static final Serde<long[]> VECTOR = Serdes.serdeFrom(
            (topic, vector) -> {
                if (vector == null) {
                    return null;
                }
                ByteBuffer bytes = ByteBuffer.allocate(8 * vector.length);
                for (long number : vector) {
                    bytes.putLong(number);
                }
                return bytes.array();
            },
            (topic, bytes) -> {
                if (bytes == null) {
                    return null;
                }
                long[] vector = new long[bytes.length / 8];
                ByteBuffer.wrap(bytes).asLongBuffer().get(vector);
                return vector;
            });

    private VectorApp() {}

    public static void main(String[] arguments) {
        String prefix = arguments[0];
        Properties settings = new Properties();
        settings.put("auto.offset.reset", "earliest");
        settings.put("replication.factor", "1");
        for (int i = 1; i < arguments.length; i += 2) {
            settings.put(arguments[i], arguments[i + 1]);
        }
        StreamsBuilder builder = settings.containsKey("processor.wrapper.class")
                ? new StreamsBuilder(new TopologyConfig(new StreamsConfig(settings)))
                : new StreamsBuilder();
        KStream<String, String> orders = builder.stream(
                prefix + "orders", Consumed.with(Serdes.String(), Serdes.String()));
        if (settings.remove("with.regions") != null) {
            GlobalKTable<String, String> regions = builder.globalTable(
                    prefix + "regions", Consumed.with(Serdes.String(), Serdes.String()));
            orders = orders.leftJoin(regions, (id, order) -> order, (order, region) -> order);
        }
        KTable<String, long[]> totals = orders
                .selectKey((id, order) -> order.substring(0, order.indexOf(',')))
                .mapValues(VectorApp::one)
                .groupByKey(Grouped.with("by-customer", Serdes.String(), VECTOR))
                .reduce((a, b) -> sum(a, b, 1), store("totals"));
        totals.toStream().to(prefix + "customer-totals", Produced.with(Serdes.String(), VECTOR));
        if (settings.remove("with.feedback") != null) {
            totals.toStream()
                    .filter((customer, total) -> number(customer) < 100 && count(total) % 10 == 0)
                    .map((customer, total) -> KeyValue.pair(
                            customer, "c" + (number(customer) + 100) + "," + count(total) % 4 + ",again"))
                    .to(prefix + "orders", Produced.with(Serdes.String(), Serdes.String()));
        }
        String groupTotals = settings.remove("with.shared") == null ? "group-totals" : "customer-totals";
        totals.groupBy(
                        (customer, total) -> KeyValue.pair("g" + customer, total),
                        Grouped.with("by-group", Serdes.String(), VECTOR))
                .reduce((a, b) -> sum(a, b, 1), (a, b) -> sum(a, b, -1), store("groups"))
                .toStream()
                .to(prefix + groupTotals, Produced.with(Serdes.String(), VECTOR));
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setStateListener((now, before) -> say("STATE " + now));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(30))));
        streams.start();
    }

    private static int number(String customer) {
        return Integer.parseInt(customer.substring(1));
    }

    private static long count(long[] vector) {
        return LongStream.of(vector).sum();
    }

    private static long[] one(String order) {
        long[] vector = new long[PARTITIONS];
        vector[Integer.parseInt(order.split(",")[1])] = 1;
        return vector;
    }

    private static long[] sum(long[] a, long[] b, int sign) {
        long[] vector = a.clone();
        for (int i = 0; i < vector.length; i++) {
            vector[i] += sign * b[i];
        }
        return vector;
    }

    /** Changelogs keep every record: the oracle looks back. */
    private static Materialized<String, long[], KeyValueStore<Bytes, byte[]>> store(String name) {
        return Materialized.<String, long[], KeyValueStore<Bytes, byte[]>>as(name)
                .withKeySerde(Serdes.String())
                .withValueSerde(VECTOR)
                .withLoggingEnabled(Map.of("cleanup.policy", "delete", "retention.ms", "-1"));
    }

    private static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }
}
