package kstreamsassets.companion;

import java.time.Duration;
import java.util.Set;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorSupplier;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.ProcessingContext;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.ProcessorWrapper;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.WrappedFixedKeyProcessorSupplier;
import org.apache.kafka.streams.processor.api.WrappedProcessorSupplier;
import org.apache.kafka.streams.state.StoreBuilder;

/**
 * For <code>processor.wrapper.class</code>: commits when a recorder asks for it (KIP-1112, Kafka
 * Streams 4.0). Kafka Streams ignores it unless the topology is built with
 * <code>new StreamsBuilder(new TopologyConfig(new StreamsConfig(properties)))</code>.
 *
 * <p>With exactly-once it does nothing: a point of such an application needs no commit.
 */
public final class CommitWrapper implements ProcessorWrapper {
    private static final Duration EVERY = Duration.ofMillis(50);

    @Override
    public <A, B, C, D> WrappedProcessorSupplier<A, B, C, D> wrapProcessorSupplier(
            String name, ProcessorSupplier<A, B, C, D> supplier) {
        return new WrappedProcessorSupplier<>() {
            @Override
            public Set<StoreBuilder<?>> stores() {
                return supplier.stores();
            }

            @Override
            public Processor<A, B, C, D> get() {
                Processor<A, B, C, D> processor = supplier.get();
                Requests requests = new Requests();
                return new Processor<>() {
                    @Override
                    public void init(ProcessorContext<C, D> context) {
                        requests.start(context, context::commit);
                        processor.init(context);
                    }

                    @Override
                    public void process(Record<A, B> record) {
                        requests.look();
                        processor.process(record);
                    }

                    @Override
                    public void close() {
                        requests.end();
                        processor.close();
                    }
                };
            }
        };
    }

    @Override
    public <A, B, D> WrappedFixedKeyProcessorSupplier<A, B, D> wrapFixedKeyProcessorSupplier(
            String name, FixedKeyProcessorSupplier<A, B, D> supplier) {
        return new WrappedFixedKeyProcessorSupplier<>() {
            @Override
            public Set<StoreBuilder<?>> stores() {
                return supplier.stores();
            }

            @Override
            public FixedKeyProcessor<A, B, D> get() {
                FixedKeyProcessor<A, B, D> processor = supplier.get();
                Requests requests = new Requests();
                return new FixedKeyProcessor<>() {
                    @Override
                    public void init(FixedKeyProcessorContext<A, D> context) {
                        requests.start(context, context::commit);
                        processor.init(context);
                    }

                    @Override
                    public void process(FixedKeyRecord<A, B> record) {
                        requests.look();
                        processor.process(record);
                    }

                    @Override
                    public void close() {
                        requests.end();
                        processor.close();
                    }
                };
            }
        };
    }

    /** Looks for new requests: at each record, and with one punctuation for each task. */
    private static final class Requests {
        private StreamThreadState thread;
        private TaskId task;
        private Runnable commit;

        void start(ProcessingContext context, Runnable commit) {
            try {
                StreamThreadState own = StreamThreadState.current();
                if (own == null || !own.commitsOnDemand()) {
                    return;
                }
                this.commit = commit;
                thread = own;
                if (thread.tasks.add(context.taskId())) {
                    task = context.taskId();
                    context.schedule(EVERY, PunctuationType.WALL_CLOCK_TIME, now -> look());
                }
            } catch (Throwable error) { // thrown on, it would stop the application
                Journal.warn("A task does not commit on demand", error);
            }
        }

        void look() {
            if (thread != null && thread.isAsked()) {
                commit.run();
            }
        }

        void end() {
            if (task != null) {
                thread.tasks.remove(task);
            }
        }
    }
}
