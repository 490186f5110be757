import java.io.IOException;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Counts the orders of each customer, and passes on those of a high value.
 *
 * <pre>
 * orders.created.v1 -> high value -> orders.high-value.v1, unchanged
 *                   -> by customer (repartition) -> store order-count-by-customer
 *                                                -> customer-order-counts.v1
 * </pre>
 *
 * Records that are not orders are left out. Version 2 runs side by side: under another application
 * id, with {@code orders.count.version=v2}, it has another store and its own output topics.
 */
public final class OrdersCount {
    private static final long HIGH_VALUE_CENTS = 100_000;
    private static final String FIRST = "v1";

    private OrdersCount() {}

    public static void main(String[] arguments) throws InterruptedException, IOException {
        Launcher.launch(arguments, "orders-count-v1", OrdersCount::topology);
    }

    static Topology topology(String prefix, Properties settings) {
        Serde<String> text = Serdes.String();
        Serde<byte[]> raw = Serdes.ByteArray();
        String version = settings.getProperty("orders.count.version", FIRST);
        String store = "order-count-by-customer" + (version.equals(FIRST) ? "" : "-" + version);
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, byte[]> orders = builder
                .stream(prefix + "orders.created.v1", Consumed.with(text, raw).withName("orders-source"))
                .filter((id, value) -> CreatedOrder.read(value).valid(), Named.as("is-order"));
        orders.filter(
                        (id, value) -> CreatedOrder.read(value).amountCents() >= HIGH_VALUE_CENTS,
                        Named.as("is-high-value"))
                .to(prefix + "orders.high-value." + version, Produced.with(text, raw).withName("high-value-sink"));
        orders.selectKey((id, value) -> CreatedOrder.read(value).customer(), Named.as("customer-of-order"))
                .groupByKey(Grouped.with("orders-by-customer", text, raw))
                .count(
                        Named.as("count-orders"),
                        Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(store)
                                .withKeySerde(text)
                                .withValueSerde(Serdes.Long()))
                .toStream(Named.as("changed-counts"))
                .to(
                        prefix + "customer-order-counts." + version,
                        Produced.with(text, Serdes.Long()).withName("counts-sink"));
        return builder.build(settings);
    }
}
