package kstreamsassets.companion;

import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/** One stream thread: the ends of what its producer has written, and the number of its commits. */
final class StreamThreadState {
    private static final Map<String, StreamThreadState> THREADS = new HashMap<>();

    final String name;
    /** Identifies this start of the thread: with a fixed client.id, names recur after a restart. */
    private final String run = UUID.randomUUID().toString();
    private final Map<TopicPartition, Long> ends = new ConcurrentHashMap<>();
    private int consumers;
    private int producers;
    private volatile String unusable = AckInterceptor.class.getName() + " is not configured";
    private volatile boolean hasFailed;
    private long commits;

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
            }
            return thread;
        }
    }

    void close(boolean isConsumer) {
        synchronized (THREADS) {
            int clients = isConsumer ? --consumers : --producers;
            if (consumers <= 0 && producers <= 0) {
                THREADS.remove(name, this);
            }
        }
    }

    void acknowledged(RecordMetadata record) {
        TopicPartition partition = new TopicPartition(record.topic(), record.partition());
        ends.merge(partition, record.offset() + 1, Math::max);
    }

    /** A record was not acknowledged: the log may contain it nevertheless. */
    void failed() {
        hasFailed = true;
    }

    /** The broker does not return offsets (acks=0). */
    void hasUnknownEnds() {
        unusable = "the producer of " + name + " gets acknowledgements without offsets";
    }

    /** Return the boundary of this commit as JSON (see README.md). Call it on the stream thread. */
    String boundary(String application, Map<TopicPartition, OffsetAndMetadata> offsets) {
        long number = ++commits; // dropped ones count: the reader sees the gap
        if (unusable != null) {
            throw new IllegalStateException(unusable);
        }
        boolean regular = !hasFailed && isRegular();
        hasFailed = false;
        Map<TopicPartition, Long> committed = new HashMap<>();
        offsets.forEach((partition, offset) -> committed.put(partition, offset.offset()));
        return "{\"version\":1,\"application\":" + quoted(application)
                + ",\"thread\":" + quoted(name)
                + ",\"run\":" + quoted(run)
                + ",\"number\":" + number
                + ",\"timestamp_ms\":" + System.currentTimeMillis()
                + ",\"regular\":" + regular
                + ",\"committed\":" + json(committed)
                + ",\"acknowledged\":" + json(ends) + "}";
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
