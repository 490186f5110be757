import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
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
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Counts what browsers do, and checks which of their actions had a captcha solved nearby.
 *
 * <pre>
 * product-views -> own counter (store product-counts) -> every tenth -> popular-products
 * product-views, user-actions -> by browser (repartition events-by-browser)
 *      -> counted (store browser-counts) -> browser-counts
 *      -> counted in hopping windows (store browser-windows) -> browser-window-counts
 *      -> actions, left join captchas-solved (stores captcha-...)
 *         -> known-browsers (global store known-browsers) -> captcha-checks
 * </pre>
 *
 * Keys are texts (product, id of the action, browser, browser); values are JSON: views
 * {@code {"id", "browser"}}, actions {@code {"browser", "action"}}, captchas {@code {"captcha"}}; a
 * known browser has a label (text).
 */
public final class BrowserActions {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration WINDOW = Duration.ofSeconds(5);
    private static final Duration ADVANCE = Duration.ofSeconds(2);
    private static final Duration WINDOW_GRACE = Duration.ofMinutes(20);
    private static final Duration CAPTCHA_NEARBY = Duration.ofMinutes(5);
    private static final Duration CAPTCHA_GRACE = Duration.ofMinutes(1);
    private static final String VIEW = "view";
    private static final String PRODUCT_COUNTS = "product-counts";
    private static final long POPULAR = 10;
    private static final Serde<String> TEXT = Serdes.String();

    private BrowserActions() {}

    public static void main(String[] arguments) throws InterruptedException, IOException {
        Launcher.launch(arguments, "browser-actions", BrowserActions::topology);
    }

    static Topology topology(String prefix, Properties settings) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> views = source(builder, prefix, "product-views");
        KStream<String, String> actions = source(builder, prefix, "user-actions");
        KStream<String, String> captchas = source(builder, prefix, "captchas-solved");
        countProducts(builder, views, prefix);
        KStream<String, String> events = views
                .map((product, view) -> event(view, null, VIEW), Named.as("view-by-browser"))
                .merge(
                        actions.map((id, action) -> event(action, id, null), Named.as("action-by-browser")),
                        Named.as("all-events"))
                .filter((browser, event) -> browser != null, Named.as("valid-events"))
                .repartition(Repartitioned.with(TEXT, TEXT).withName("events-by-browser"));
        countEvents(events.groupByKey(Grouped.with(TEXT, TEXT)), prefix);
        checkCaptchas(builder, events, captchas, prefix);
        return builder.build(settings);
    }

    private static KStream<String, String> source(StreamsBuilder builder, String prefix, String topic) {
        return builder.stream(prefix + topic, Consumed.with(TEXT, TEXT).withName(topic + "-source"));
    }

    private static void countProducts(StreamsBuilder builder, KStream<String, String> views, String prefix) {
        builder.addStateStore(Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore(PRODUCT_COUNTS), TEXT, Serdes.Long()));
        views.process(ProductCounter::new, Named.as("product-counter"), PRODUCT_COUNTS)
                .to(prefix + "popular-products", sink("popular-products", Serdes.Long()));
    }

    private static void countEvents(KGroupedStream<String, String> events, String prefix) {
        events.count(
                        Named.as("count-events"),
                        Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("browser-counts")
                                .withKeySerde(TEXT)
                                .withValueSerde(Serdes.Long()))
                .toStream(Named.as("changed-counts"))
                .to(prefix + "browser-counts", sink("browser-counts", Serdes.Long()));
        events.windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, WINDOW_GRACE).advanceBy(ADVANCE))
                .count(
                        Named.as("count-in-window"),
                        Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("browser-windows")
                                .withKeySerde(TEXT)
                                .withValueSerde(Serdes.Long()))
                .toStream(Named.as("changed-windows"))
                .map(
                        (window, count) -> KeyValue.pair(
                                window.key() + "@" + window.window().start(), count),
                        Named.as("window-as-text"))
                .to(prefix + "browser-window-counts", sink("browser-window-counts", Serdes.Long()));
    }

    private static void checkCaptchas(
            StreamsBuilder builder, KStream<String, String> events, KStream<String, String> captchas, String prefix) {
        GlobalKTable<String, String> known = builder.globalTable(
                prefix + "known-browsers",
                Consumed.with(TEXT, TEXT).withName("known-browsers"),
                Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("known-browsers")
                        .withKeySerde(TEXT)
                        .withValueSerde(TEXT));
        events.filter((browser, event) -> !field(event, "action").equals(VIEW), Named.as("actions-only"))
                .leftJoin(
                        captchas,
                        (browser, action, captcha) -> check(browser, action, captcha),
                        JoinWindows.ofTimeDifferenceAndGrace(CAPTCHA_NEARBY, CAPTCHA_GRACE),
                        StreamJoined.with(TEXT, TEXT, TEXT).withName("captcha-join").withStoreName("captcha"))
                .leftJoin(
                        known,
                        (browser, check) -> browser,
                        (browser, check, label) -> labelled(check, label),
                        Named.as("join-label"))
                .selectKey((browser, check) -> field(check, "id"), Named.as("action-of-check"))
                .to(prefix + "captcha-checks", sink("captcha-checks", TEXT));
    }

    private static <V> Produced<String, V> sink(String topic, Serde<V> values) {
        return Produced.with(TEXT, values).withName(topic + "-sink");
    }

    /** An event by its browser; the browser is null when the value is neither a view nor an action. */
    private static KeyValue<String, String> event(String value, String id, String action) {
        String browser = field(value, "browser");
        String eventId = id == null ? field(value, "id") : id;
        String what = action == null ? field(value, "action") : action;
        if (browser == null || eventId == null || what == null) {
            return KeyValue.pair(null, null);
        }
        return KeyValue.pair(browser, JSON.createObjectNode().put("id", eventId).put("action", what).toString());
    }

    private static String check(String browser, String action, String captcha) {
        return JSON.createObjectNode()
                .put("id", field(action, "id"))
                .put("browser", browser)
                .put("action", field(action, "action"))
                .put("captcha", captcha == null ? null : field(captcha, "captcha"))
                .toString();
    }

    private static String labelled(String check, String label) {
        return ((ObjectNode) read(check)).put("label", label).toString();
    }

    /** A text of a JSON object, null when it is not there. */
    private static String field(String json, String name) {
        return read(json).path(name).textValue();
    }

    private static JsonNode read(String json) {
        try {
            return json == null ? JSON.missingNode() : JSON.readTree(json);
        } catch (IOException e) {
            return JSON.missingNode();
        }
    }

    /** Counts the views of a product, and forwards every tenth count. */
    static final class ProductCounter implements Processor<String, String, String, Long> {
        private ProcessorContext<String, Long> context;
        private KeyValueStore<String, Long> counts;

        @Override
        public void init(ProcessorContext<String, Long> context) {
            this.context = context;
            this.counts = context.getStateStore(PRODUCT_COUNTS);
        }

        @Override
        public void process(Record<String, String> view) {
            if (view.key() == null) {
                return;
            }
            Long before = counts.get(view.key());
            long count = before == null ? 1 : before + 1;
            counts.put(view.key(), count);
            if (count % POPULAR == 0) {
                context.forward(view.withValue(count));
            }
        }
    }
}
