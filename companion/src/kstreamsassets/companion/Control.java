package kstreamsassets.companion;

import java.lang.reflect.Field;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * The requests of a recorder, from the control topic: "commit" asks for a commit of each thread,
 * "hold" also stops each thread at a commit until "release". A hold ends by itself.
 */
final class Control {
    static final String TOPIC = "kstreams.assets.control.topic";
    static final String BY_REFLECTION = "kstreams.assets.commit.by.reflection";
    private static final long LONGEST_HOLD_NS = TimeUnit.MILLISECONDS.toNanos(500);
    /** From the start of one hold to the start of the next: whoever asks cannot stop the threads. */
    private static final long BETWEEN_HOLDS_NS = TimeUnit.SECONDS.toNanos(1);

    private final Journal journal;
    private final String topic;
    private final boolean byReflection;
    private volatile boolean closing;
    private volatile String request = "";
    private String held = "";
    private String released = "";
    private long heldAt = System.nanoTime() - BETWEEN_HOLDS_NS;

    Control(Journal journal, Map<String, ?> config) {
        this.journal = journal;
        topic = config.get(TOPIC).toString();
        byReflection = Boolean.parseBoolean(String.valueOf(config.get(BY_REFLECTION)));
        Thread reader = new Thread(this::run, journal.application + "-commit-control");
        reader.setDaemon(true);
        reader.start();
    }

    void close() {
        closing = true;
    }

    /** Return the newest request; "" before the first one. */
    String request() {
        return request;
    }

    /** Return the request for which threads stop at their commits now; "" if none. */
    synchronized String held() {
        return System.nanoTime() - heldAt < LONGEST_HOLD_NS ? held : "";
    }

    /** Stop the calling thread; return whether it stopped until the recorder released it. */
    synchronized boolean hold(String id) {
        while (held.equals(id)) {
            long left = LONGEST_HOLD_NS - (System.nanoTime() - heldAt);
            if (left <= 0) {
                held = ""; // the others go on too
                notifyAll();
                return false;
            }
            try {
                TimeUnit.NANOSECONDS.timedWait(this, left);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                return false;
            }
        }
        return released.equals(id);
    }

    private void accept(String kind, String id) {
        if ("release".equals(kind)) {
            release(id);
            return;
        }
        if ("hold".equals(kind) && startHold(id) || "commit".equals(kind)) {
            request = id;
            if (byReflection) {
                commitByReflection();
            } else if (!StreamThreadState.hasCommitWrapper()) {
                journal.report("No thread commits on demand", new IllegalStateException(
                        "processor.wrapper.class is not kstreamsassets.companion.CommitWrapper, the"
                        + " topology was built without a TopologyConfig, or no task runs here"));
            }
        }
    }

    private synchronized boolean startHold(String id) {
        long now = System.nanoTime();
        if (now - heldAt < BETWEEN_HOLDS_NS) {
            return false;
        }
        held = id;
        heldAt = now;
        return true;
    }

    private synchronized void release(String id) {
        if (held.equals(id)) {
            released = id;
            held = "";
            notifyAll();
        }
    }

    /** Kafka Streams then commits in the next iteration of each thread. A field that it may rename. */
    private void commitByReflection() {
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getClass().getName().endsWith(".processor.internals.StreamThread")
                    && StreamThreadState.isKnown(thread.getName())) {
                try {
                    Field last = thread.getClass().getDeclaredField("lastCommitMs");
                    last.setAccessible(true);
                    last.setLong(thread, 0L);
                } catch (ReflectiveOperationException | RuntimeException error) {
                    journal.report("No commit on demand of " + thread.getName(), error);
                }
            }
        }
    }

    private void run() {
        while (!closing) {
            try {
                journal.createTopic(topic);
                read();
            } catch (Throwable error) { // the thread lives on
                journal.report("The control topic " + topic + " cannot be read", error);
                pause();
            }
        }
    }

    /** Requests from before the start are not read: nobody waits for their answers any more. */
    private void read() {
        Map<String, Object> config = new HashMap<>(journal.clientConfig);
        config.put("client.id", journal.application + "-commit-control");
        config.put("key.deserializer", StringDeserializer.class);
        config.put("value.deserializer", StringDeserializer.class);
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "latest");
        config.put("allow.auto.create.topics", "false");
        config.put("default.api.timeout.ms", "10000");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config)) {
            if (consumer.partitionsFor(topic).isEmpty()) {
                throw new IllegalStateException("it does not exist");
            }
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            while (!closing) {
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(200))) {
                    accept(one.key(), one.value());
                }
            }
        }
    }

    private static void pause() {
        try {
            TimeUnit.SECONDS.sleep(10);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
