import java.lang.management.ManagementFactory;
import javax.management.MBeanServer;
import javax.management.ObjectName;

/** OracleApp, with a line of the metrics of its commit journal whenever they have changed. */
public final class JournalledApp {
    private JournalledApp() {}

    public static void main(String[] arguments) throws Exception {
        Thread metrics = new Thread(JournalledApp::print);
        metrics.setDaemon(true);
        metrics.start();
        OracleApp.main(arguments);
    }

    private static void print() {
        MBeanServer server = ManagementFactory.getPlatformMBeanServer();
        String before = "";
        try {
            ObjectName pattern = new ObjectName("kstreamsassets:type=commit-journal,*");
            while (true) {
                for (ObjectName name : server.queryNames(pattern, null)) {
                    String now = "JOURNAL " + server.getAttribute(name, "Written")
                            + " " + server.getAttribute(name, "Dropped")
                            + " " + server.getAttribute(name, "LastError");
                    if (!now.equals(before)) {
                        System.out.println(now);
                        before = now;
                    }
                }
                Thread.sleep(100);
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
    }
}
