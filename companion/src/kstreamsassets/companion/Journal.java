package kstreamsassets.companion;

import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import javax.management.JMException;
import javax.management.ObjectName;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.StringSerializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The journal topic of an application. Stream threads put boundaries into a queue and never wait.
 * A thread of the journal writes them. What cannot be written is dropped and counted.
 */
final class Journal implements JournalMXBean {
    private static final String PREFIX = "kstreams.assets.journal.";
    private static final Logger LOG = LoggerFactory.getLogger(Journal.class);
    private static final Map<List<String>, Journal> OPEN = new HashMap<>();
    private static final int QUEUE_SIZE = 1000;

    final String application;
    private final String topic;
    final Map<String, Object> clientConfig = new HashMap<>();
    /** Null unless the application reads requests. */
    final Control control;
    private final BlockingQueue<ProducerRecord<String, String>> queue =
            new ArrayBlockingQueue<>(QUEUE_SIZE);
    private final AtomicLong written = new AtomicLong();
    private final AtomicLong dropped = new AtomicLong();
    private final AtomicLong nextWarning = new AtomicLong(System.nanoTime());
    private volatile String lastError = "";
    private volatile boolean failing = true; // look after the topic before the next boundary
    private volatile boolean closing;
    private int users;

    private Journal(String application, String topic, Map<String, ?> config) {
        this.application = application;
        this.topic = topic;
        clientConfig.put("client.id", application + "-commit-journal");
        clientConfig.put("request.timeout.ms", "5000");
        config.forEach((name, value) -> { // the connection of the application, without interceptors
            if (name.matches("bootstrap\\.servers|client\\.dns\\.lookup|(security|ssl|sasl)\\..*")) {
                clientConfig.put(name, value);
            }
        });
        config.forEach((name, value) -> {
            if (name.startsWith(PREFIX) && !name.equals(PREFIX + "topic")) {
                clientConfig.put(name.substring(PREFIX.length()), value);
            }
        });
        control = Control.of(this, config);
    }

    /** Return the journal that all threads of an application in this JVM share. */
    static Journal open(Map<String, ?> config) {
        String application = String.valueOf(config.get("group.id"));
        Object configured = config.get(PREFIX + "topic");
        String topic = configured == null ? application + "-commit-journal" : configured.toString();
        List<String> key = List.of(application, topic, String.valueOf(config.get("bootstrap.servers")));
        synchronized (OPEN) {
            Journal journal = OPEN.get(key);
            if (journal == null) {
                journal = new Journal(application, topic, config);
                Thread writer = new Thread(journal::run, application + "-commit-journal");
                writer.setDaemon(true);
                writer.start();
                OPEN.put(key, journal);
            }
            journal.users++;
            return journal;
        }
    }

    /** The last user closes the journal, and does not wait for it. */
    void release() {
        synchronized (OPEN) {
            if (--users == 0) {
                OPEN.values().remove(this);
                closing = true;
                if (control != null) {
                    control.close();
                }
            }
        }
    }

    boolean offer(String thread, String boundary) {
        boolean isQueued = queue.offer(new ProducerRecord<>(topic, 0, thread, boundary));
        if (!isQueued) {
            drop(new IllegalStateException(QUEUE_SIZE + " boundaries wait. Last error: " + lastError));
        }
        return isQueued;
    }

    void drop(Throwable error) {
        dropped.incrementAndGet();
        lastError = error.toString();
        report("A boundary was not written to the commit journal " + topic, error);
    }

    void report(String problem, Throwable error) {
        long now = System.nanoTime();
        long next = nextWarning.get();
        if (now - next >= 0 && nextWarning.compareAndSet(next, now + TimeUnit.MINUTES.toNanos(1))) {
            warn(problem, error);
        }
    }

    static void warn(String problem, Throwable error) {
        LOG.warn("{}: {}", problem, error.toString());
    }

    private void run() {
        ObjectName metrics = register();
        KafkaProducer<String, String> producer = null;
        while (!closing || !queue.isEmpty() && !failing) {
            try {
                ProducerRecord<String, String> boundary = queue.poll(200, TimeUnit.MILLISECONDS);
                if (boundary == null) {
                    continue;
                }
                if (failing) {
                    failing = false;
                    createTopic(topic);
                }
                if (producer == null) {
                    producer = new KafkaProducer<>(producerConfig());
                }
                producer.send(boundary, (metadata, error) -> completed(error));
            } catch (Throwable error) { // the thread lives on: the next boundary may succeed
                completed(error);
            }
        }
        if (producer != null) {
            producer.close(Duration.ofSeconds(5));
        }
        unregister(metrics);
    }

    private void completed(Throwable error) {
        if (error == null) {
            written.incrementAndGet();
        } else {
            failing = true;
            drop(error);
        }
    }

    /** Only WRITE is needed if the topic exists: without the right to create, the producer tries. */
    void createTopic(String name) throws InterruptedException {
        Map<String, Object> config = new HashMap<>(clientConfig);
        config.putIfAbsent("default.api.timeout.ms", "5000");
        String day = String.valueOf(TimeUnit.DAYS.toMillis(1));
        NewTopic journal = new NewTopic(name, Optional.of(1), Optional.empty())
                .configs(Map.of("cleanup.policy", "delete", "retention.ms", day));
        try (Admin admin = Admin.create(config)) {
            admin.createTopics(List.of(journal)).all().get();
        } catch (ExecutionException error) {
            if (!(error.getCause() instanceof TopicExistsException)) {
                report("Topic " + name + " was not created", error.getCause());
            }
        }
    }

    /** Without idempotence only WRITE is needed; a retry may write the same boundary twice. */
    private Map<String, Object> producerConfig() {
        Map<String, Object> config = new HashMap<>(clientConfig);
        config.put("key.serializer", StringSerializer.class);
        config.put("value.serializer", StringSerializer.class);
        config.putIfAbsent("enable.idempotence", "false");
        config.putIfAbsent("max.in.flight.requests.per.connection", "1");
        config.putIfAbsent("acks", "all");
        config.putIfAbsent("linger.ms", "0");
        config.putIfAbsent("max.block.ms", "5000");
        config.putIfAbsent("delivery.timeout.ms", "10000");
        config.putIfAbsent("buffer.memory", "4194304");
        return config;
    }

    private ObjectName register() {
        try {
            ObjectName name = new ObjectName("kstreamsassets:type=commit-journal,application="
                    + ObjectName.quote(application) + ",topic=" + ObjectName.quote(topic));
            ManagementFactory.getPlatformMBeanServer().registerMBean(this, name);
            return name;
        } catch (JMException | RuntimeException error) {
            warn("The commit journal has no metrics", error);
            return null;
        }
    }

    private static void unregister(ObjectName name) {
        try {
            if (name != null) {
                ManagementFactory.getPlatformMBeanServer().unregisterMBean(name);
            }
        } catch (JMException | RuntimeException error) {
            warn("The metrics of the commit journal were not removed", error);
        }
    }

    @Override
    public long getWritten() {
        return written.get();
    }

    @Override
    public long getDropped() {
        return dropped.get();
    }

    @Override
    public String getLastError() {
        return lastError;
    }
}
