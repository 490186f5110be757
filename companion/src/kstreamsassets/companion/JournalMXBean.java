package kstreamsassets.companion;

/** JMX: <code>kstreamsassets:type=commit-journal,application="…",topic="…"</code>. */
public interface JournalMXBean {
    /** Return how many boundaries brokers have acknowledged. */
    long getWritten();

    /** Return how many boundaries the journal does not have: their numbers are a gap in it. */
    long getDropped();

    /** Return why a boundary was last dropped; empty if none was. */
    String getLastError();
}
