import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;

/**
 * Warns of users with a burst of large transactions and a high risk.
 *
 * <pre>
 * risk-scores (global store global-risk-store)
 *      |
 * transactions -> large ones of users at risk -> by user (repartition)
 *              -> sessions (store session-count-store) -> three or more -> fraud-alerts
 * </pre>
 *
 * A transaction has an id as key and the value {@code {"user_id": text, "amount_cents": integer}}; a
 * risk score is a double from 0 to 100 by user.
 */
public final class FraudDetector {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration INACTIVITY_GAP = Duration.ofMinutes(5);
    private static final Duration GRACE = Duration.ofSeconds(30);
    private static final long LARGE_CENTS = 100_000;
    private static final double HIGH_RISK = 70;
    private static final long BURST = 3;

    private FraudDetector() {}

    public static void main(String[] arguments) throws InterruptedException, IOException {
        Launcher.launch(arguments, "fraud-detector", FraudDetector::topology);
    }

    static Topology topology(String prefix, Properties settings) {
        Serde<String> text = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        GlobalKTable<String, Double> risks = builder.globalTable(
                prefix + "risk-scores",
                Consumed.with(text, Serdes.Double()).withName("risk-scores"),
                Materialized.<String, Double, KeyValueStore<Bytes, byte[]>>as("global-risk-store")
                        .withKeySerde(text)
                        .withValueSerde(Serdes.Double()));
        builder.stream(prefix + "transactions", Consumed.with(text, text).withName("transactions-source"))
                .mapValues(Transaction::read, Named.as("read-transaction"))
                .filter((id, transaction) -> transaction != null, Named.as("valid-transactions"))
                .leftJoin(
                        risks,
                        (id, transaction) -> transaction.user(),
                        (id, transaction, risk) -> transaction.withRisk(risk),
                        Named.as("join-risk"))
                .filter((id, transaction) -> transaction.isSuspicious(), Named.as("suspicious-transactions"))
                .map((id, transaction) -> KeyValue.pair(transaction.user(), id), Named.as("user-of-transaction"))
                .groupByKey(Grouped.with("suspicious-by-user", text, text))
                .windowedBy(SessionWindows.ofInactivityGapAndGrace(INACTIVITY_GAP, GRACE))
                .count(
                        Named.as("count-in-session"),
                        Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("session-count-store")
                                .withKeySerde(text)
                                .withValueSerde(Serdes.Long()))
                .toStream(Named.as("changed-sessions"))
                // A session that was merged into another one comes as null.
                .filter((session, count) -> count != null && count >= BURST, Named.as("bursts"))
                .map((session, count) -> KeyValue.pair(session.key(), alert(session, count)), Named.as("alert"))
                .to(prefix + "fraud-alerts", Produced.with(text, text).withName("fraud-alerts-sink"));
        return builder.build(settings);
    }

    private static String alert(Windowed<String> session, long count) {
        return JSON.createObjectNode()
                .put("user_id", session.key())
                .put("count", count)
                .put("from_ms", session.window().start())
                .put("to_ms", session.window().end())
                .toString();
    }

    /** A transaction with the risk of its user: 0 as long as there is no score. */
    record Transaction(String user, long amountCents, double risk) {
        /** The transaction, or null when the value is none. */
        static Transaction read(String value) {
            if (value == null) {
                return null;
            }
            JsonNode fields;
            try {
                fields = JSON.readTree(value);
            } catch (IOException e) {
                return null;
            }
            JsonNode user = fields.path("user_id");
            JsonNode amount = fields.path("amount_cents");
            if (!user.isTextual() || user.textValue().isEmpty() || !amount.canConvertToLong()) {
                return null;
            }
            return new Transaction(user.textValue(), amount.longValue(), 0);
        }

        Transaction withRisk(Double score) {
            return new Transaction(user, amountCents, score == null ? 0 : score);
        }

        boolean isSuspicious() {
            return amountCents > LARGE_CENTS && risk > HIGH_RISK;
        }
    }
}
