package kstreamsassets.companion;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.processor.TaskId;

/** One stream thread: the ends of what its producer has written, and the number of its commits. */
final class StreamThreadState {
    private static final Map<String, StreamThreadState> THREADS = new HashMap<>();

    final String name;
    /** Identifies this start of the thread: with a fixed client.id, names recur after a restart. */
    private final String run = UUID.randomUUID().toString();
    private final Map<TopicPartition, AtomicLong> ends = new ConcurrentHashMap<>();
    private String newestTopic;
    private int newestPartition;
    private AtomicLong newestEnd;
    /** Tasks that look for requests of a recorder. */
    final Set<TaskId> tasks = ConcurrentHashMap.newKeySet();
    private int consumers;
    private int producers;
    private volatile Control control;
    private volatile boolean isTransactional;
    private String asked = "";
    private volatile String unusable = AckInterceptor.class.getName() + " is not configured";
    private volatile boolean hasFailed;
    private long commits;
    private boolean stops;

    private StreamThreadState(String name) {
        this.name = name;
    }

    /** Return the thread of a client: "…-StreamThread-1-consumer" and "…-StreamThread-1-producer". */
    static StreamThreadState of(Map<String, ?> config, boolean isConsumer) {
        String client = String.valueOf(config.get("client.id"));
        String name = client.replaceAll("-(consumer|producer)$", "");
        synchronized (THREADS) {
            StreamThreadState thread = THREADS.computeIfAbsent(name, StreamThreadState::new);
            int clients = isConsumer ? ++thread.consumers : ++thread.producers;
            if (clients > 1) { // the ends of two threads would mix
                thread.unusable = "two threads of this JVM are named " + name;
            } else if (!isConsumer && thread.consumers <= 1) {
                thread.unusable = null;
                thread.isTransactional = config.get("transactional.id") != null;
            }
            return thread;
        }
    }

    /** Return the state of the calling stream thread, null for any other thread. */
    static StreamThreadState current() {
        synchronized (THREADS) {
            return THREADS.get(Thread.currentThread().getName());
        }
    }

    static boolean isKnown(String thread) {
        synchronized (THREADS) {
            return THREADS.containsKey(thread);
        }
    }

    /** Whether tasks of this JVM look for requests. */
    static boolean hasCommitWrapper() {
        synchronized (THREADS) {
            return THREADS.values().stream().anyMatch(thread -> !thread.tasks.isEmpty());
        }
    }

    void setControl(Control control) {
        this.control = control;
    }

    boolean commitsOnDemand() {
        return control != null && !isTransactional;
    }

    /** Whether there is a request that this thread was not asked for before. Stream thread only. */
    boolean isAsked() {
        String request = control.request();
        if (request.equals(asked)) {
            return false;
        }
        asked = request;
        return true;
    }

    void close(boolean isConsumer) {
        synchronized (THREADS) {
            int clients = isConsumer ? --consumers : --producers;
            if (consumers <= 0 && producers <= 0) {
                THREADS.remove(name, this);
            }
        }
    }

    /**
     * Called for each record, by one thread of the producer at a time. Neighbours are mostly of one
     * partition, so it is seldom looked up.
     */
    void acknowledged(RecordMetadata record) {
        // The same string object: another one of the same text is looked up.
        if (record.partition() != newestPartition || record.topic() != newestTopic) {
            newestTopic = record.topic();
            newestPartition = record.partition();
            newestEnd = ends.computeIfAbsent(
                    new TopicPartition(newestTopic, newestPartition), partition -> new AtomicLong());
        }
        long end = record.offset() + 1;
        if (end > newestEnd.get()) {
            newestEnd.lazySet(end); // flush() returns after it: the boundary sees it
        }
    }

    /** A record was not acknowledged: the log may contain it nevertheless. */
    void failed() {
        hasFailed = true;
    }

    /** The broker does not return offsets (acks=0). */
    void hasUnknownEnds() {
        unusable = "the producer of " + name + " gets acknowledgements without offsets";
    }

    /**
     * Return the boundary of this commit as JSON (see README.md). Call it on the stream thread.
     *
     * @param request the newest request that was read before; "" if none
     * @param held the request for which the thread will stop now; "" if none
     */
    String boundary(
            String application,
            Map<TopicPartition, OffsetAndMetadata> offsets,
            String request,
            String held) {
        long number = ++commits; // dropped ones count: the reader sees the gap
        if (unusable != null) {
            throw new IllegalStateException(unusable);
        }
        boolean regular = !hasFailed && isRegular();
        hasFailed = false;
        stops = regular && !held.isEmpty();
        Map<TopicPartition, Long> committed = new HashMap<>();
        offsets.forEach((partition, offset) -> committed.put(partition, offset.offset()));
        Map<TopicPartition, Long> acknowledged = new HashMap<>();
        ends.forEach((partition, end) -> acknowledged.put(partition, end.get()));
        return "{\"version\":1,\"application\":" + quoted(application)
                + ",\"thread\":" + quoted(name)
                + ",\"run\":" + quoted(run)
                + ",\"number\":" + number
                + ",\"timestamp_ms\":" + System.currentTimeMillis()
                + ",\"regular\":" + regular
                + (request.isEmpty() ? "" : ",\"request\":" + quoted(request))
                + (stops ? ",\"held\":" + quoted(held) : "")
                + ",\"committed\":" + json(committed)
                + ",\"acknowledged\":" + json(acknowledged) + "}";
    }

    /** Whether the thread must stop now: the last boundary said so. */
    boolean stops() {
        return stops;
    }

    /** Return as JSON how a stop at the last boundary has ended. */
    String released(String application, String held, boolean byRecorder) {
        return "{\"version\":1,\"application\":" + quoted(application)
                + ",\"thread\":" + quoted(name)
                + ",\"run\":" + quoted(run)
                + ",\"held\":" + quoted(held)
                + ",\"released\":" + byRecorder + "}";
    }

    /** False while tasks are revoked or after a corrupted task: such a commit leaves tasks out. */
    private static boolean isRegular() {
        return StackWalker.getInstance().walk(frames -> frames.anyMatch(frame ->
                frame.getMethodName().equals("maybeCommit")
                        && frame.getClassName().endsWith(".StreamThread")));
    }

    /** {"topic":{"0":12,"1":7}} */
    private static String json(Map<TopicPartition, Long> offsets) {
        Map<String, StringBuilder> topics = new TreeMap<>();
        offsets.forEach((partition, offset) -> {
            StringBuilder to = topics.computeIfAbsent(partition.topic(), name -> new StringBuilder());
            to.append(to.length() == 0 ? "" : ",");
            to.append('"').append(partition.partition()).append("\":").append(offset);
        });
        StringBuilder all = new StringBuilder("{");
        topics.forEach((topic, partitions) -> all.append(all.length() == 1 ? "" : ",")
                .append(quoted(topic)).append(":{").append(partitions).append('}'));
        return all.append('}').toString();
    }

    private static String quoted(String text) {
        StringBuilder to = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            boolean escape = each < ' ' || each == '"' || each == '\\';
            to.append(escape ? String.format("\\u%04x", (int) each) : String.valueOf(each));
        }
        return to.append('"').toString();
    }
}
