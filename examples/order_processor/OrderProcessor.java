import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
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
 * Adds up the orders of each customer.
 *
 * <pre>
 * orders -> valid    -> by customer (repartition) -> store order-totals -> customer-totals
 *        -> rejected -> orders-rejected, unchanged, with the header "reason"
 * </pre>
 *
 * Run with: java -cp "&lt;jars&gt;/*:&lt;classes&gt;" OrderProcessor --bootstrap host:port, compiled together
 * with Launcher.java of examples/streams.
 */
public final class OrderProcessor {
    private static final ObjectMapper JSON = new ObjectMapper();

    private OrderProcessor() {}

    public static void main(String[] arguments) throws InterruptedException, IOException {
        Launcher.launch(arguments, "orders", OrderProcessor::topology);
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
}
