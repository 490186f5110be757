package kstreamsassets.companion;

import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/**
 * For <code>main.consumer.interceptor.classes</code>: passes the boundary of each commit to the journal.
 *
 * <p>Kafka calls <code>onCommit</code> on the stream thread inside <code>commitSync</code>, after the
 * broker has accepted the offsets and before the thread processes more records. Kafka Streams has
 * flushed the producer before. So the acknowledged ends belong exactly to these offsets.
 */
public final class CommitInterceptor implements ConsumerInterceptor<byte[], byte[]> {
    private StreamThreadState thread;
    private Journal journal;

    @Override
    public void configure(Map<String, ?> config) {
        try {
            thread = StreamThreadState.of(config, true);
            journal = Journal.open(config);
            thread.setControl(journal.control);
        } catch (Throwable error) { // thrown on, it would stop the application
            Journal.warn("The commit journal is off", error);
        }
    }

    @Override
    public void onCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {
        if (journal != null) {
            try {
                Control control = journal.control;
                String request = control == null ? "" : control.request();
                String held = control == null ? "" : control.held();
                String boundary = thread.boundary(journal.application, offsets, request, held);
                if (journal.offer(thread.name, boundary) && thread.stops()) {
                    boolean byRecorder = control.hold(held);
                    journal.offer(
                            thread.name, thread.released(journal.application, held, byRecorder));
                }
            } catch (Throwable error) {
                journal.drop(error);
            }
        }
    }

    @Override
    public ConsumerRecords<byte[], byte[]> onConsume(ConsumerRecords<byte[], byte[]> records) {
        return records;
    }

    @Override
    public void close() {
        if (thread != null) {
            thread.close(true);
        }
        if (journal != null) {
            journal.release();
        }
    }
}
