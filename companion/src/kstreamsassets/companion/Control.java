package kstreamsassets.companion;

import java.lang.reflect.Field;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * The requests of a recorder, from a topic or an HTTP endpoint: "commit" asks for a commit of each
 * thread, "hold" also stops each thread at a commit until "release". A hold ends by itself.
 */
final class Control {
    /** Where requests come from. On an error, reading starts again after a while. */
    interface Source {
        /** Pass requests to {@link #accept} until the control closes. */
        void read() throws Exception;
    }

    private static final String TOPIC = "kstreams.assets.control.topic";
    private static final String HTTP_ADDRESS = "kstreams.assets.control.http.address";
    static final String HTTP_TOKEN = "kstreams.assets.control.http.token";
    private static final String BY_REFLECTION = "kstreams.assets.commit.by.reflection";
    private static final long LONGEST_HOLD_NS = TimeUnit.MILLISECONDS.toNanos(500);
    /** From the start of one hold to the start of the next: whoever asks cannot stop the threads. */
    private static final long BETWEEN_HOLDS_NS = TimeUnit.SECONDS.toNanos(1);

    private final Journal journal;
    private final boolean byReflection;
    private volatile boolean closing;
    private volatile String request = "";
    private String held = "";
    private String released = "";
    private long heldAt = System.nanoTime() - BETWEEN_HOLDS_NS;

    /** Null unless the application names a control topic or the address of an endpoint. */
    static Control of(Journal journal, Map<String, ?> config) {
        Object topic = config.get(TOPIC);
        Object address = config.get(HTTP_ADDRESS);
        if (topic == null && address == null) {
            return null;
        }
        Control control = new Control(
                journal, Boolean.parseBoolean(String.valueOf(config.get(BY_REFLECTION))));
        if (topic != null) {
            control.start(new ControlTopic(control, journal, topic.toString()));
        }
        if (address != null) {
            Object token = config.get(HTTP_TOKEN);
            control.start(new ControlEndpoint(
                    control, address.toString(), token == null ? "" : token.toString()));
        }
        return control;
    }

    private Control(Journal journal, boolean byReflection) {
        this.journal = journal;
        this.byReflection = byReflection;
    }

    private void start(Source source) {
        Thread reader = new Thread(() -> run(source), journal.application + "-commit-control");
        reader.setDaemon(true);
        reader.start();
    }

    void close() {
        closing = true;
    }

    boolean isClosing() {
        return closing;
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

    /** Return whether the request counts; a hold soon after another one does not. */
    boolean accept(String kind, String id) {
        if ("release".equals(kind)) {
            release(id);
            return true;
        }
        if (!begin(kind, id)) {
            return false;
        }
        if (byReflection) {
            commitByReflection();
        } else if (!StreamThreadState.hasCommitWrapper()) {
            journal.report("No thread commits on demand", new IllegalStateException(
                    "processor.wrapper.class is not kstreamsassets.companion.CommitWrapper, the"
                    + " topology was built without a TopologyConfig, or no task runs here"));
        }
        return true;
    }

    private synchronized boolean begin(String kind, String id) {
        boolean isHold = "hold".equals(kind);
        if (!isHold && !"commit".equals(kind)) {
            return false;
        }
        if (isHold && !id.equals(request)) { // else the same request, by another address of this host
            long now = System.nanoTime();
            if (now - heldAt < BETWEEN_HOLDS_NS) {
                return false;
            }
            held = id;
            heldAt = now;
        }
        request = id;
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

    private void run(Source source) {
        while (!closing) {
            try {
                source.read();
            } catch (Throwable error) { // the thread lives on
                journal.report(source + " cannot be read", error);
                pause();
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
