import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.regex.Pattern;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.api.*;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.*;

/**
 * Writes the *.txt files beside it with the real Kafka Streams:
 *   java -cp ".jars/kafka/*" tests/app/topologies/DescribeTopologies.java tests/app/topologies
 * No broker is needed. The order inside lists may differ from run to run.
 */
public class DescribeTopologies {
    static final Map<String, Topology> all = new LinkedHashMap<>();
    static final Consumed<String, String> strings = Consumed.with(Serdes.String(), Serdes.String());

    public static void main(String[] args) throws Exception {
        filter();
        repartitionedCount();
        globalTableSession();
        tableJoin();
        foreignKeyJoin(true);
        foreignKeyJoin(false);
        patternAndExtractor();
        streamTableJoin(true);
        streamTableJoin(false);
        outerStreamJoin();
        materialisedTableJoin();
        suppressedCount();
        intermediateTopic();
        processorApi();
        writesItsOwnInput();
        for (var entry : all.entrySet()) {
            Files.writeString(Path.of(args[0], entry.getKey() + ".txt"), entry.getValue().describe().toString());
        }
    }

    static void add(String name, StreamsBuilder builder) {
        all.put(name, builder.build());
    }

    static void filter() {
        var b = new StreamsBuilder();
        b.stream("in", strings).filter((k, v) -> v != null).to("out");
        add("filter", b);
    }

    static void repartitionedCount() {
        var b = new StreamsBuilder();
        b.stream("in", strings).selectKey((k, v) -> v).groupByKey().count().toStream().to("counts");
        add("repartitioned_count", b);
    }

    static void globalTableSession() {
        var b = new StreamsBuilder();
        GlobalKTable<String, String> users = b.globalTable("users", strings);
        b.stream("clicks", strings)
            .leftJoin(users, (k, v) -> k, (click, user) -> click)
            .groupByKey()
            .windowedBy(SessionWindows.ofInactivityGapWithNoGrace(Duration.ofMinutes(5)))
            .count().toStream().map((w, n) -> KeyValue.pair(w.key(), n)).to("session-counts");
        add("global_table_session", b);
    }

    static void tableJoin() {
        var b = new StreamsBuilder();
        KTable<String, String> left = b.table("left", strings, Materialized.with(Serdes.String(), Serdes.String()));
        KTable<String, String> right = b.table("right", strings, Materialized.with(Serdes.String(), Serdes.String()));
        left.leftJoin(right, (l, r) -> l + r).toStream().to("joined");
        add("table_join", b);
    }

    static void foreignKeyJoin(boolean named) {
        var b = new StreamsBuilder();
        KTable<String, String> orders = b.table("orders", strings);
        KTable<String, String> products = b.table("products", strings);
        KTable<String, String> joined = named
            ? orders.join(products, v -> v, (o, p) -> o + p, TableJoined.as("enrich"), Materialized.as("enriched"))
            : orders.join(products, v -> v, (o, p) -> o + p);
        joined.toStream().to("enriched-orders");
        add(named ? "foreign_key_join_named" : "foreign_key_join", b);
    }

    static void patternAndExtractor() {
        var b = new StreamsBuilder();
        b.stream(Pattern.compile("(eu|us)-orders\\.[a-z]+(-v[0-9])?"), strings)
            .merge(b.stream(List.of("late-orders", "orders.replayed"), strings))
            .peek((k, v) -> { }, Named.as("Audit.peek-1_b"))
            .to((k, v, context) -> "audit-" + k);
        add("pattern_and_extractor", b);
    }

    static void streamTableJoin(boolean named) {
        var b = new StreamsBuilder();
        KTable<String, String> users = named ? b.table("users", Consumed.<String, String>as("user-table")) : b.table("users", strings);
        KStream<String, String> clicks = b.stream("clicks", strings);
        KStream<String, String> joined = named
            ? clicks.join(users, (c, u) -> c, Joined.as("with-user"))
            : clicks.join(users, (c, u) -> c);
        joined.to("user-clicks");
        joined.groupByKey().count(Named.as("count-clicks"), Materialized.as("clicks-per-user")).toStream().to("click-counts");
        add(named ? "stream_table_join_named" : "stream_table_join", b);
    }

    static void outerStreamJoin() {
        var b = new StreamsBuilder();
        b.stream("ads", strings)
            .outerJoin(b.stream("clicks", strings), (a, c) -> a + c,
                JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofMinutes(1)),
                StreamJoined.<String, String, String>as("match").withName("match"))
            .to("matches");
        b.stream("bids", strings)
            .join(b.stream("asks", strings), (x, y) -> x + y, JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofMinutes(1)))
            .to("deals");
        add("stream_joins", b);
    }

    static void materialisedTableJoin() {
        var b = new StreamsBuilder();
        KTable<String, String> left = b.table("left", strings);
        left.outerJoin(b.table("right", strings), (l, r) -> l + r, Named.as("pair"), Materialized.as("pairs"))
            .mapValues(v -> v, Materialized.as("upper"))
            .toStream().to("joined");
        add("materialised_table_join", b);
    }

    static void suppressedCount() {
        var b = new StreamsBuilder();
        b.stream("in", strings).groupBy((k, v) -> v)
            .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMinutes(1)))
            .count(Materialized.as("per-minute"))
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()).withName("final"))
            .toStream().to("final-counts");
        add("suppressed_count", b);
    }

    static void intermediateTopic() {
        var b = new StreamsBuilder();
        b.stream("raw", strings).mapValues(v -> v).to("clean");
        b.stream("clean", strings).selectKey((k, v) -> v).repartition(Repartitioned.as("by-value")).groupByKey()
            .aggregate(() -> "", (k, v, a) -> a + v, Materialized.as("totals")).toStream().to("totals-out");
        add("intermediate_topic", b);
    }

    static class Nothing implements Processor<String, String, String, String> {
        public void process(Record<String, String> record) { }
    }

    static void processorApi() {
        var t = new Topology();
        StoreBuilder<?> state = Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("shared"), Serdes.String(), Serdes.String());
        StoreBuilder<?> scratch = Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("scratch"), Serdes.String(), Serdes.String()).withLoggingDisabled();
        StoreBuilder<?> global = Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("rates"), Serdes.String(), Serdes.String()).withLoggingDisabled();
        t.addSource("read: a,b (main)", "a", "b");
        t.addSource("read c", Pattern.compile("c \\(topics: x\\)|c[0-9]+"));
        t.addProcessor("left:one,two", Nothing::new, "read: a,b (main)");
        t.addProcessor("right (stores: [])", Nothing::new, "read c");
        t.addStateStore(state, "left:one,two", "right (stores: [])");
        t.addStateStore(scratch, "right (stores: [])");
        t.addSink("Sink: write", "d", "left:one,two", "right (stores: [])");
        t.addGlobalStore((StoreBuilder) global, "rates source", null, null, "fx-rates", "rates processor", (ProcessorSupplier) Nothing::new);
        all.put("processor_api", t);
    }

    static void writesItsOwnInput() {
        var b = new StreamsBuilder();
        var tried = b.stream(List.of("jobs", "retries"), strings)
            .groupByKey().reduce((x, y) -> y, Materialized.as("attempts")).toStream();
        tried.filter((k, v) -> v.isEmpty()).to("retries");
        tried.filter((k, v) -> !v.isEmpty()).to("done");
        b.stream("poll", strings).filter((k, v) -> true).to("poll");
        add("writes_its_own_input", b);
    }
}
