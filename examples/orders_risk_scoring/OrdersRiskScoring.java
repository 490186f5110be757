import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
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
 * Sorts orders into those that carry a risk and those that do not, and scores customers.
 *
 * <pre>
 * orders.created.v1 -> error     -> orders.error.v1, unchanged, with the header "reason"
 *                   -> filtered  -> orders.filtered-out.v1 (no positive amount), unchanged
 *                   -> candidate -> orders.risk-candidates.v1
 *                                -> by customer (repartition) -> store risk-score-by-customer
 * </pre>
 *
 * Every record lands in exactly one of the three topics, invalid orders too.
 */
public final class OrdersRiskScoring {
    private static final long CENTS_PER_POINT = 10_000;
    private static final long MOST_POINTS = 100;

    private OrdersRiskScoring() {}

    public static void main(String[] arguments) throws InterruptedException, IOException {
        Launcher.launch(arguments, "orders-risk-scoring-v1", OrdersRiskScoring::topology);
    }

    static Topology topology(String prefix, Properties settings) {
        // Keys as they come: a key that is not text must not stop the application.
        Serde<byte[]> raw = Serdes.ByteArray();
        Serde<JsonNode> json = Launcher.json();
        StreamsBuilder builder = new StreamsBuilder();
        Map<String, KStream<byte[], byte[]>> branches = builder
                .stream(prefix + "orders.created.v1", Consumed.with(raw, raw).withName("orders-source"))
                .split(Named.as("orders-"))
                .branch((id, value) -> !CreatedOrder.read(value).valid(), Branched.as("error"))
                .branch((id, value) -> CreatedOrder.read(value).amountCents() <= 0, Branched.as("filtered-out"))
                .defaultBranch(Branched.as("candidates"));
        branches.get("orders-error")
                .processValues(AddReason::new, Named.as("add-reason"))
                .to(prefix + "orders.error.v1", Produced.with(raw, raw).withName("error-sink"));
        branches.get("orders-filtered-out")
                .to(prefix + "orders.filtered-out.v1", Produced.with(raw, raw).withName("filtered-out-sink"));
        KStream<byte[], JsonNode> candidates = branches.get("orders-candidates")
                .mapValues(value -> candidate(CreatedOrder.read(value)), Named.as("risk-of-order"));
        candidates.to(
                prefix + "orders.risk-candidates.v1", Produced.with(raw, json).withName("risk-candidates-sink"));
        candidates
                .selectKey((id, order) -> order.get("customer_id").textValue(), Named.as("customer-of-order"))
                .groupByKey(Grouped.with("risk-by-customer", Serdes.String(), json))
                .aggregate(
                        () -> score(0, 0),
                        (customer, order, score) -> add(score, order.get("amount_cents").longValue()),
                        Named.as("score-customer"),
                        Materialized.<String, JsonNode, KeyValueStore<Bytes, byte[]>>as("risk-score-by-customer")
                                .withKeySerde(Serdes.String())
                                .withValueSerde(json));
        return builder.build(settings);
    }

    private static JsonNode candidate(CreatedOrder order) {
        return JsonNodeFactory.instance
                .objectNode()
                .put("order_id", order.id())
                .put("customer_id", order.customer())
                .put("amount_cents", order.amountCents())
                .put("points", points(order.amountCents()));
    }

    private static JsonNode score(long orders, long totalCents) {
        return JsonNodeFactory.instance
                .objectNode()
                .put("orders", orders)
                .put("total_cents", totalCents)
                .put("score", points(totalCents));
    }

    private static JsonNode add(JsonNode score, long cents) {
        return score(score.get("orders").longValue() + 1, score.get("total_cents").longValue() + cents);
    }

    private static long points(long cents) {
        return Math.min(MOST_POINTS, cents / CENTS_PER_POINT);
    }

    /** Forwards an invalid order unchanged, with the reason in a header. */
    static final class AddReason implements FixedKeyProcessor<byte[], byte[], byte[]> {
        private FixedKeyProcessorContext<byte[], byte[]> context;

        @Override
        public void init(FixedKeyProcessorContext<byte[], byte[]> context) {
            this.context = context;
        }

        @Override
        public void process(FixedKeyRecord<byte[], byte[]> order) {
            String reason = CreatedOrder.read(order.value()).rejection();
            order.headers().add("reason", reason.getBytes(StandardCharsets.UTF_8));
            context.forward(order);
        }
    }
}
