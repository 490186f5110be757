import java.io.IOException;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/** One store of each type that can be queried; values are numbers, ten times larger in "plain-*". */
public final class StoresApp {
    private static final Duration TEN_S = Duration.ofSeconds(10);

    private StoresApp() {}

    public static void main(String[] arguments) throws InterruptedException, IOException {
        Launcher.launch(arguments, "stores", StoresApp::topology);
    }

    static Topology topology(String prefix, Properties settings) {
        Serde<String> text = Serdes.String();
        Serde<Long> number = Serdes.Long();
        Duration day = Duration.ofDays(1);
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("plain"), text, number));
        builder.addStateStore(Stores.windowStoreBuilder(
                Stores.persistentWindowStore("plain-windows", day, TEN_S, false), text, number));
        KStream<String, Long> numbers = builder.stream(prefix + "numbers", Consumed.with(text, number));
        numbers.process(PutPlain::new, "plain", "plain-windows");
        KGroupedStream<String, Long> grouped = numbers.groupByKey(Grouped.with(text, number));
        grouped.reduce(Long::sum, Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("sums"));
        grouped.windowedBy(TimeWindows.ofSizeWithNoGrace(TEN_S))
                .reduce(
                        Long::sum,
                        Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("type-windows")
                                .withRetention(day));
        grouped.windowedBy(SessionWindows.ofInactivityGapWithNoGrace(TEN_S))
                .reduce(
                        Long::sum,
                        Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("sessions")
                                .withRetention(day));
        builder.table(
                prefix + "versions",
                Consumed.with(text, number),
                Materialized.as(Stores.persistentVersionedKeyValueStore("versions", day)));
        builder.globalTable(
                prefix + "everywhere",
                Consumed.with(text, number),
                Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("everywhere"));
        return builder.build(settings);
    }

    private static final class PutPlain extends ContextualProcessor<String, Long, Void, Void> {
        @Override
        public void process(Record<String, Long> record) {
            context().<KeyValueStore<String, Long>>getStateStore("plain").put(record.key(), 10 * record.value());
            context()
                    .<WindowStore<String, Long>>getStateStore("plain-windows")
                    .put(record.key(), 10 * record.value(), record.timestamp());
        }
    }
}
