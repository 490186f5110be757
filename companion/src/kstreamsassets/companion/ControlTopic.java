package kstreamsassets.companion;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Requests that a recorder writes to a topic. */
final class ControlTopic implements Control.Source {
    private final Control control;
    private final Journal journal;
    private final String topic;

    ControlTopic(Control control, Journal journal, String topic) {
        this.control = control;
        this.journal = journal;
        this.topic = topic;
    }

    /** Requests from before the start are not read: nobody waits for their answers any more. */
    @Override
    public void read() throws InterruptedException {
        journal.createTopic(topic);
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
            while (!control.isClosing()) {
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(200))) {
                    control.accept(one.key(), one.value());
                }
            }
        }
    }

    @Override
    public String toString() {
        return "The control topic " + topic;
    }
}
