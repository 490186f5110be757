import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * An exactly-once application with tables that nobody changes any more.
 *
 * <pre>
 * orders (key customer) join customers (table, store names) -> by-region (repartition)
 *        join regions (global table) -> store totals -> totals
 * </pre>
 *
 * An order is a number, a customer names a region, a region has a label; a total is "count,sum".
 */
public final class StaticApp {
    private StaticApp() {}

    public static void main(String[] arguments) throws InterruptedException {
        Properties settings = new Properties();
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            settings.put(arguments[i], arguments[i + 1]);
        }
        Topology topology = topology();
        CountDownLatch failed = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(topology, settings);
        streams.setStateListener((now, before) -> say("STATE " + now));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            failed.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(
                () -> say(streams.close(Duration.ofSeconds(30)) ? "CLOSED" : "NOT CLOSED IN TIME")));
        streams.start();
        failed.await();
        System.exit(1);
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static Topology topology() {
        Serde<String> text = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        KTable<String, String> customers = builder.table(
                "customers",
                Consumed.with(text, text),
                Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("names")
                        .withKeySerde(text)
                        .withValueSerde(text));
        GlobalKTable<String, String> regions = builder.globalTable("regions", Consumed.with(text, text));
        builder.stream("orders", Consumed.with(text, text))
                .join(customers, (order, region) -> region + "," + order, Joined.with(text, text, text))
                .selectKey((customer, order) -> order.substring(0, order.indexOf(',')))
                .repartition(Repartitioned.with(text, text).withName("by-region"))
                .join(regions, (region, order) -> region, (order, label) -> order)
                .groupByKey(Grouped.with(text, text))
                .aggregate(
                        () -> "0,0",
                        (region, order, total) -> add(total, order),
                        Named.as("add-order"),
                        Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("totals")
                                .withKeySerde(text)
                                .withValueSerde(text))
                .toStream(Named.as("changed-totals"))
                .to("totals", Produced.with(text, text));
        return builder.build();
    }

    private static String add(String total, String order) {
        String[] parts = total.split(",");
        long amount = Long.parseLong(order.substring(order.indexOf(',') + 1));
        return (Long.parseLong(parts[0]) + 1) + "," + (Long.parseLong(parts[1]) + amount);
    }
}
