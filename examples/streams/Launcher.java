import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.io.Reader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.errors.UnknownStateStoreException;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.query.MultiVersionedKeyQuery;
import org.apache.kafka.streams.query.QueryResult;
import org.apache.kafka.streams.query.StateQueryRequest;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.QueryableStoreType;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.ReadOnlySessionStore;
import org.apache.kafka.streams.state.ReadOnlyWindowStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.state.VersionedRecordIterator;

/**
 * What every example needs around its topology: a command line, a life cycle, interactive queries.
 *
 * <p>With {@code --http-port} (0 takes a free one, written as "HTTP port") the stores are queried at
 * {@code /stores/<name>}: one JSON object a line for each entry of this instance, with {@code key},
 * {@code value} and, where the store has them, {@code timestamp}, {@code start} and {@code end}
 * (milliseconds). Of a versioned store all versions of the text keys {@code ?keys=a,b} are given,
 * with {@code from} and {@code to}.
 */
public final class Launcher {
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(30);
    private static final ObjectMapper JSON = new ObjectMapper();

    private Launcher() {}

    /** Runs until SIGTERM (the process then ends with 143) or an error (1); a wrong option ends with 2. */
    public static void launch(
            String[] arguments, String applicationId, BiFunction<String, Properties, Topology> topology)
            throws InterruptedException, IOException {
        Options options;
        try {
            options = Options.parse(arguments, applicationId);
        } catch (IllegalArgumentException e) {
            System.err.println(e.getMessage());
            System.err.println(Options.USAGE);
            System.exit(2);
            return;
        }
        Topology built = topology.apply(options.topicPrefix, options.settings);
        if (options.describe) {
            System.out.print(built.describe());
            return;
        }
        System.exit(run(built, options));
    }

    /** JSON as it is written, null as null; what cannot be read is an error. */
    public static Serde<JsonNode> json() {
        return Serdes.serdeFrom(
                (topic, node) -> {
                    try {
                        return node == null ? null : JSON.writeValueAsBytes(node);
                    } catch (IOException e) {
                        throw new SerializationException("not written as JSON for " + topic, e);
                    }
                },
                (topic, bytes) -> {
                    try {
                        return bytes == null ? null : JSON.readTree(bytes);
                    } catch (IOException e) {
                        throw new SerializationException("not JSON, from " + topic, e);
                    }
                });
    }

    private static int run(Topology topology, Options options) throws InterruptedException, IOException {
        CountDownLatch failed = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(topology, options.settings);
        streams.setStateListener((now, before) -> say("STATE " + now));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            failed.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            // Leaving the group at once lets a successor start without waiting for a timeout.
            boolean closed = streams.close(CloseOptions.timeout(CLOSE_TIMEOUT)
                    .withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
            say(closed ? "CLOSED" : "NOT CLOSED IN TIME");
        }));
        if (options.httpPort != null) {
            serve(streams, options.httpPort);
        }
        streams.start();
        failed.await();
        return 1;
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void serve(KafkaStreams streams, int port) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
        server.createContext("/stores/", exchange -> {
            String store = URLDecoder.decode(
                    exchange.getRequestURI().getRawPath().substring("/stores/".length()), StandardCharsets.UTF_8);
            try {
                answer(exchange, 200, entries(streams, store, exchange.getRequestURI().getQuery()));
            } catch (UnknownStateStoreException e) {
                answer(exchange, 404, List.of(Map.of("error", String.valueOf(e.getMessage()))));
            } catch (RuntimeException e) {
                answer(exchange, 503, List.of(Map.of("error", String.valueOf(e))));
            }
        });
        server.start();
        say("HTTP " + server.getAddress().getPort());
    }

    private static void answer(HttpExchange exchange, int status, List<Map<String, Object>> lines) throws IOException {
        exchange.getResponseHeaders().set("Content-Type", "application/x-ndjson");
        exchange.sendResponseHeaders(status, 0);
        try (OutputStream body = exchange.getResponseBody()) {
            for (Map<String, Object> line : lines) {
                body.write(JSON.writeValueAsBytes(line));
                body.write('\n');
            }
        }
    }

    private static List<Map<String, Object>> entries(KafkaStreams streams, String store, String query) {
        if (query != null && query.startsWith("keys=")) {
            return versions(streams, store, query.substring("keys=".length()).split(","));
        }
        List<Map<String, Object>> found = listed(
                streams,
                store,
                QueryableStoreTypes.<Object, Object>timestampedKeyValueStore(),
                ReadOnlyKeyValueStore::all,
                entry -> entry(entry.key, entry.value));
        if (found == null) {
            found = listed(
                    streams,
                    store,
                    QueryableStoreTypes.<Object, Object>keyValueStore(),
                    ReadOnlyKeyValueStore::all,
                    entry -> entry(entry.key, entry.value));
        }
        if (found == null) {
            found = listed(
                    streams,
                    store,
                    QueryableStoreTypes.<Object, Object>timestampedWindowStore(),
                    ReadOnlyWindowStore::all,
                    Launcher::windowed);
        }
        if (found == null) {
            found = listed(
                    streams,
                    store,
                    QueryableStoreTypes.<Object, Object>windowStore(),
                    ReadOnlyWindowStore::all,
                    Launcher::windowed);
        }
        if (found == null) {
            found = listed(
                    streams,
                    store,
                    QueryableStoreTypes.<Object, Object>sessionStore(),
                    sessions -> sessions.fetch(null, null),
                    Launcher::windowed);
        }
        if (found == null) {
            throw new InvalidStateStoreException("store " + store + " is versioned: ask with ?keys=a,b");
        }
        return found;
    }

    /** The lines of a store, or null when it is of another type, which shows only when it is asked. */
    private static <T, K, V> List<Map<String, Object>> listed(
            KafkaStreams streams,
            String store,
            QueryableStoreType<T> type,
            Function<T, KeyValueIterator<K, V>> all,
            Function<KeyValue<K, V>, Map<String, Object>> line) {
        List<Map<String, Object>> found = new ArrayList<>();
        T opened = streams.store(StoreQueryParameters.fromNameAndType(store, type));
        try (KeyValueIterator<K, V> entries = all.apply(opened)) {
            entries.forEachRemaining(entry -> found.add(line.apply(entry)));
            return found;
        } catch (InvalidStateStoreException e) {
            if (String.valueOf(e.getMessage()).contains("does not accept the actual store type")) {
                return null;
            }
            throw e;
        }
    }

    private static Map<String, Object> entry(Object key, Object value) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("key", key);
        if (value instanceof ValueAndTimestamp<?> stamped) {
            line.put("value", stamped.value());
            line.put("timestamp", stamped.timestamp());
        } else {
            line.put("value", value);
        }
        return line;
    }

    private static Map<String, Object> windowed(KeyValue<Windowed<Object>, ?> entry) {
        Map<String, Object> line = entry(entry.key.key(), entry.value);
        line.put("start", entry.key.window().start());
        line.put("end", entry.key.window().end());
        return line;
    }

    private static List<Map<String, Object>> versions(KafkaStreams streams, String store, String[] keys) {
        List<Map<String, Object>> found = new ArrayList<>();
        for (String key : keys) {
            StateQueryRequest<VersionedRecordIterator<Object>> request = StateQueryRequest.inStore(store)
                    .withQuery(MultiVersionedKeyQuery.<String, Object>withKey(key));
            for (QueryResult<VersionedRecordIterator<Object>> result :
                    streams.query(request).getPartitionResults().values()) {
                if (result.isFailure()) {
                    throw new InvalidStateStoreException(result.getFailureMessage());
                }
                try (VersionedRecordIterator<Object> versions = result.getResult()) {
                    while (versions.hasNext()) {
                        VersionedRecord<Object> version = versions.next();
                        Map<String, Object> line = entry(key, version.value());
                        line.put("from", version.timestamp());
                        version.validTo().ifPresent(to -> line.put("to", to));
                        found.add(line);
                    }
                }
            }
        }
        return found;
    }

    /** The command line. */
    private static final class Options {
        static final String USAGE = """
                Options: --bootstrap <host:port,...> [--properties <file>] [--application-id <id>]
                    [--guarantee exactly_once_v2|at_least_once] [--state-dir <folder>]
                    [--commit-interval-ms <n>] [--threads <n>] [--topic-prefix <text>]
                    [--http-port <n>] [--config <key>=<value>]...
                    (--properties has settings of Kafka clients, such as a password; bootstrap.servers
                    may be among them)
                or: --describe [--topic-prefix <text>] [--config <key>=<value>]...""";
        private static final Map<String, String> SETTINGS = Map.of(
                "--bootstrap", StreamsConfig.BOOTSTRAP_SERVERS_CONFIG,
                "--application-id", StreamsConfig.APPLICATION_ID_CONFIG,
                "--guarantee", StreamsConfig.PROCESSING_GUARANTEE_CONFIG,
                "--state-dir", StreamsConfig.STATE_DIR_CONFIG,
                "--commit-interval-ms", StreamsConfig.COMMIT_INTERVAL_MS_CONFIG,
                "--threads", StreamsConfig.NUM_STREAM_THREADS_CONFIG);

        final Properties settings = new Properties();
        String topicPrefix = "";
        Integer httpPort;
        boolean describe;

        static Options parse(String[] arguments, String applicationId) throws IOException {
            Options options = new Options();
            options.settings.put(StreamsConfig.APPLICATION_ID_CONFIG, applicationId);
            options.settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
            for (int i = 0; i < arguments.length; i++) {
                String name = arguments[i];
                if (name.equals("--describe")) {
                    options.describe = true;
                    continue;
                }
                if (i + 1 == arguments.length) {
                    throw new IllegalArgumentException("Unknown option or value missing: " + name);
                }
                options.take(name, arguments[++i]);
            }
            if (!options.describe && !options.settings.containsKey(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG)) {
                throw new IllegalArgumentException("--bootstrap is missing");
            }
            return options;
        }

        private void take(String name, String value) throws IOException {
            if (SETTINGS.containsKey(name)) {
                settings.put(SETTINGS.get(name), value);
            } else if (name.equals("--properties")) {
                try (Reader file = Files.newBufferedReader(Path.of(value))) {
                    settings.load(file);
                }
            } else if (name.equals("--topic-prefix")) {
                topicPrefix = value;
            } else if (name.equals("--http-port")) {
                httpPort = Integer.valueOf(value);
            } else if (name.equals("--config") && value.indexOf('=') > 0) {
                int equals = value.indexOf('=');
                settings.put(value.substring(0, equals), value.substring(equals + 1));
            } else {
                throw new IllegalArgumentException("Unknown option: " + name + " " + value);
            }
        }
    }
}
