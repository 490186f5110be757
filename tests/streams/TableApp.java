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
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * An optimised application that writes the source topic of its own table, which so serves as the
 * table's changelog.
 *
 * <pre>
 * changes -> customers -> table customers -> out
 * </pre>
 *
 * Each change is one record of customers and one of out. Prints the text of its topology first.
 */
public final class TableApp {
    private TableApp() {}

    public static void main(String[] arguments) throws InterruptedException {
        Properties settings = new Properties();
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
        String prefix = arguments[0];
        for (int i = 1; i + 1 < arguments.length; i += 2) {
            settings.put(arguments[i], arguments[i + 1]);
        }
        Topology topology = topology(prefix, settings);
        System.out.print(topology.describe());
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

    private static Topology topology(String prefix, Properties settings) {
        Serde<String> text = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(prefix + "changes", Consumed.with(text, text))
                .to(prefix + "customers", Produced.with(text, text));
        builder.table(
                        prefix + "customers",
                        Consumed.with(text, text),
                        Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("customers"))
                .toStream(Named.as("changed-customers"))
                .to(prefix + "out", Produced.with(text, text));
        return builder.build(settings);
    }
}
