package kstreamsassets.companion;

import java.util.Map;
import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

/**
 * For <code>producer.interceptor.classes</code>: records the end of what a thread has written.
 *
 * <p>Kafka calls <code>onAcknowledgement</code> before the producer's <code>flush</code> returns.
 */
public final class AckInterceptor implements ProducerInterceptor<byte[], byte[]> {
    private StreamThreadState thread;

    @Override
    public void configure(Map<String, ?> config) {
        try {
            thread = StreamThreadState.of(config, false);
        } catch (Throwable error) { // thrown on, it would stop the application
            Journal.warn("The commit journal is off", error);
        }
    }

    @Override
    public ProducerRecord<byte[], byte[]> onSend(ProducerRecord<byte[], byte[]> record) {
        return record;
    }

    @Override
    public void onAcknowledgement(RecordMetadata record, Exception error) {
        if (thread == null) {
            return;
        }
        if (error != null) {
            thread.failed();
        } else if (record.hasOffset()) {
            thread.acknowledged(record);
        } else {
            thread.hasUnknownEnds();
        }
    }

    @Override
    public void close() {
        if (thread != null) {
            thread.close(false);
        }
    }
}
