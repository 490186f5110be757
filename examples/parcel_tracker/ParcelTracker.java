import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * A parcel service: one application with the kinds of state that the other examples do not have.
 *
 * <pre>
 * parcels   -> table parcels   } optimised: the topics themselves are the changelogs
 * customers -> table customers }
 * slots     -> table slots (changelog of its own)
 * parcels x slots, same key                                      -> schedule
 * parcels x customers, by the parcel's customer -> store labels  -> labels
 * scans     -> store regions (a cache without changelog)         -> regional-scans
 *           -> windows scans-per-window -> suppress              -> depot-windows
 *           -> windows scans-at-close, emitted when they close   -> depot-load
 * handovers -> pick-ups x deliveries, outer join in a window     -> handover-reports
 * ledger    -> versioned table tariffs x weighings, with grace   -> postage
 * </pre>
 *
 * Keys are text. The two sides of a stream join come from one topic, so that its records have one
 * order, whatever is read first after a restart.
 */
public final class ParcelTracker {
    static final Duration WINDOW = Duration.ofSeconds(10);
    static final Duration LOAD_WINDOW = Duration.ofSeconds(30);
    static final Duration GRACE = Duration.ofSeconds(2);
    static final Duration HANDOVER = Duration.ofSeconds(20);
    static final Duration TARIFF_GRACE = Duration.ofSeconds(10);
    static final Duration TARIFF_HISTORY = Duration.ofMinutes(2);
    /** Closed windows stay for queries: they must not be emitted once more. */
    static final Duration LOAD_RETENTION = Duration.ofHours(2);

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Serde<String> TEXT = Serdes.String();
    private static final Serde<Long> LONG = Serdes.Long();
    private static final Serde<Integer> INT = Serdes.Integer();

    private ParcelTracker() {}

    public static void main(String[] arguments) throws InterruptedException, IOException {
        Launcher.launch(arguments, "parcel-tracker", ParcelTracker::topology);
    }

    static Topology topology(String prefix, Properties settings) {
        settings.putIfAbsent(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        StreamsBuilder builder = new StreamsBuilder();
        parcels(builder, prefix);
        scans(builder, prefix);
        handovers(builder, prefix);
        ledger(builder, prefix);
        return builder.build(settings);
    }

    private static void parcels(StreamsBuilder builder, String prefix) {
        KTable<String, String> parcels =
                builder.table(prefix + "parcels", text("parcels-table"), kept("parcels", TEXT));
        KTable<String, String> customers =
                builder.table(prefix + "customers", text("customers-table"), kept("customers", TEXT));
        KTable<String, Long> slots = builder
                .stream(prefix + "slots", Consumed.with(TEXT, LONG).withName("slots-source"))
                .toTable(Named.as("slots-table"), kept("slots", LONG));

        parcels.join(slots, ParcelTracker::scheduled, Named.as("scheduled"))
                .toStream(Named.as("schedule-changes"))
                .to(prefix + "schedule", Produced.with(TEXT, TEXT).withName("schedule-sink"));
        parcels.join(
                        customers,
                        parcel -> read(parcel).path("customer").asText(),
                        ParcelTracker::label,
                        TableJoined.as("addressed"),
                        kept("labels", TEXT))
                .toStream(Named.as("label-changes"))
                .to(prefix + "labels", Produced.with(TEXT, TEXT).withName("labels-sink"));
    }

    private static void scans(StreamsBuilder builder, String prefix) {
        KStream<String, String> scans = builder.stream(prefix + "scans", text("scans-source"));
        builder.addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("regions"), TEXT, TEXT)
                .withLoggingDisabled());
        scans.processValues(RegionOfScan::new, Named.as("region-of-scan"), "regions")
                .to(prefix + "regional-scans", Produced.with(TEXT, TEXT).withName("regional-sink"));

        KGroupedStream<String, String> grouped = scans.groupByKey(Grouped.with(TEXT, TEXT));
        grouped.windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, GRACE))
                .count(Named.as("count-in-window"), counted("scans-per-window"))
                .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()).withName("closed-windows"))
                .toStream(Named.as("window-results"))
                .selectKey((window, count) -> named(window), Named.as("window-names"))
                .to(prefix + "depot-windows", Produced.with(TEXT, LONG).withName("windows-sink"));
        grouped.windowedBy(TimeWindows.ofSizeAndGrace(LOAD_WINDOW, GRACE))
                .emitStrategy(EmitStrategy.onWindowClose())
                .count(Named.as("count-until-closed"), counted("scans-at-close").withRetention(LOAD_RETENTION))
                .toStream(Named.as("load-results"))
                .selectKey((window, count) -> named(window), Named.as("load-names"))
                .to(prefix + "depot-load", Produced.with(TEXT, LONG).withName("load-sink"));
    }

    private static void handovers(StreamsBuilder builder, String prefix) {
        KStream<String, String> handovers = builder.stream(prefix + "handovers", text("handovers-source"));
        KStream<String, String> pickUps =
                handovers.filter((parcel, event) -> event.startsWith("picked up"), Named.as("pick-ups"));
        KStream<String, String> deliveries =
                handovers.filter((parcel, event) -> event.startsWith("delivered"), Named.as("deliveries"));
        pickUps.outerJoin(
                        deliveries,
                        (pickUp, delivery) -> pickUp + ", " + delivery,
                        JoinWindows.ofTimeDifferenceAndGrace(HANDOVER, GRACE),
                        StreamJoined.with(TEXT, TEXT, TEXT).withName("handover").withStoreName("handover"))
                .to(prefix + "handover-reports", Produced.with(TEXT, TEXT).withName("reports-sink"));
    }

    private static void ledger(StreamsBuilder builder, String prefix) {
        KStream<String, String> ledger = builder.stream(prefix + "ledger", text("ledger-source"));
        // No value: from then on (the record's timestamp) there is no tariff.
        KTable<String, Integer> tariffs = ledger
                .filterNot((zone, entry) -> isWeighing(entry), Named.as("tariff-entries"))
                .mapValues(entry -> entry == null ? null : Integer.valueOf(entry), Named.as("cents-per-kilogram"))
                .toTable(
                        Named.as("tariffs-table"),
                        Materialized.<String, Integer>as(
                                        Stores.persistentVersionedKeyValueStore("tariffs", TARIFF_HISTORY))
                                .withKeySerde(TEXT)
                                .withValueSerde(INT));
        ledger.filter((zone, entry) -> isWeighing(entry), Named.as("weighings"))
                .leftJoin(
                        tariffs,
                        ParcelTracker::priced,
                        Joined.with(TEXT, TEXT, INT, "priced", TARIFF_GRACE))
                .to(prefix + "postage", Produced.with(TEXT, TEXT).withName("postage-sink"));
    }

    /** The region of a scan's postcode; what is in the cache only saves time. */
    private static final class RegionOfScan extends ContextualFixedKeyProcessor<String, String, String> {
        private KeyValueStore<String, String> regions;

        @Override
        public void init(FixedKeyProcessorContext<String, String> context) {
            super.init(context);
            regions = context.getStateStore("regions");
        }

        @Override
        public void process(FixedKeyRecord<String, String> scan) {
            JsonNode said = read(scan.value());
            String postcode = said.path("postcode").asText();
            String region = regions.get(postcode);
            if (region == null) {
                region = "region-" + Integer.parseInt(postcode) / 1000;
                regions.put(postcode, region);
            }
            context().forward(scan.withValue(said.path("parcel").asText() + " in " + region));
        }
    }

    private static Consumed<String, String> text(String name) {
        return Consumed.with(TEXT, TEXT).withName(name);
    }

    private static <V> Materialized<String, V, KeyValueStore<Bytes, byte[]>> kept(String store, Serde<V> value) {
        return Materialized.<String, V, KeyValueStore<Bytes, byte[]>>as(store)
                .withKeySerde(TEXT)
                .withValueSerde(value);
    }

    private static Materialized<String, Long, WindowStore<Bytes, byte[]>> counted(String store) {
        return Materialized.<String, Long, WindowStore<Bytes, byte[]>>as(store)
                .withKeySerde(TEXT)
                .withValueSerde(LONG);
    }

    private static String named(Windowed<String> window) {
        return window.key() + "@" + window.window().start();
    }

    private static String scheduled(String parcel, Long slot) {
        return write(((ObjectNode) read(parcel)).put("slot", slot));
    }

    private static String label(String parcel, String customer) {
        JsonNode to = read(customer);
        ObjectNode label = JSON.createObjectNode();
        label.set("name", to.path("name"));
        label.set("street", to.path("street"));
        label.set("grams", read(parcel).path("grams"));
        return write(label);
    }

    private static boolean isWeighing(String entry) {
        return entry != null && entry.startsWith("weighed ");
    }

    private static String priced(String weighing, Integer centsPerKilogram) {
        int grams = Integer.parseInt(weighing.substring("weighed ".length()));
        return centsPerKilogram == null ? grams + " g: no tariff" : grams + " g: " + grams * centsPerKilogram / 1000;
    }

    private static JsonNode read(String text) {
        try {
            return JSON.readTree(text);
        } catch (JsonProcessingException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static String write(JsonNode node) {
        try {
            return JSON.writeValueAsString(node);
        } catch (JsonProcessingException e) {
            throw new UncheckedIOException(e);
        }
    }
}
