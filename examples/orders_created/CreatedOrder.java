import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;

/**
 * An order as it lies in orders.created.v1, or the reason why a record there is none.
 *
 * <p>{@code rejection} is null for an order; its amount may be zero or negative.
 */
record CreatedOrder(String id, String customer, long amountCents, String rejection) {
    private static final ObjectMapper JSON = new ObjectMapper();

    static CreatedOrder read(byte[] value) {
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
        if (!amount.isIntegralNumber() || !amount.canConvertToLong()) {
            return rejected("no amount");
        }
        return new CreatedOrder(order.path("order_id").asText(), customer.textValue(), amount.longValue(), null);
    }

    boolean valid() {
        return rejection == null;
    }

    private static CreatedOrder rejected(String reason) {
        return new CreatedOrder(null, null, 0, reason);
    }
}
