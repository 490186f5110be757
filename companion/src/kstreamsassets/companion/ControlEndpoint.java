package kstreamsassets.companion;

import static java.nio.charset.StandardCharsets.UTF_8;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.BindException;
import java.net.InetSocketAddress;
import java.security.MessageDigest;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Requests that a recorder sends by HTTP, for recorders that may not write to the cluster:
 * <code>POST /commit/&lt;identity&gt;</code> with <code>Authorization: Bearer &lt;token&gt;</code>.
 */
final class ControlEndpoint implements Control.Source {
    private static final int SHORTEST_TOKEN = 16;
    private static final int TRIES = 10;
    /** All that a client can say: no request has a body that is read. */
    private static final Pattern REQUEST =
            Pattern.compile("/(commit|hold|release)/([0-9A-Za-z-]{1,64})");

    private final Control control;
    private final String address;
    private final String token;

    ControlEndpoint(Control control, String address, String token) {
        this.control = control;
        this.address = address;
        this.token = token;
    }

    @Override
    public void read() throws IOException, InterruptedException {
        if (token.length() < SHORTEST_TOKEN) {
            throw new IllegalArgumentException(
                    Control.HTTP_TOKEN + " has less than " + SHORTEST_TOKEN + " characters");
        }
        HttpServer server = bound();
        ExecutorService threads = Executors.newFixedThreadPool(4, task -> {
            Thread thread = new Thread(task, "commit-control-http");
            thread.setDaemon(true);
            return thread;
        });
        server.setExecutor(threads);
        server.createContext("/", this::answer);
        try {
            server.start(); // its thread ends with the JVM, because this one is a daemon
            while (!control.isClosing()) {
                TimeUnit.MILLISECONDS.sleep(200);
            }
        } finally {
            server.stop(0);
            threads.shutdownNow();
        }
    }

    private HttpServer bound() throws IOException, InterruptedException {
        InetSocketAddress at = socketAddress();
        for (int triesLeft = TRIES; ; triesLeft--) {
            try {
                return HttpServer.create(at, 0);
            } catch (BindException error) { // an earlier start in this JVM may still let go of it
                if (triesLeft == 0) {
                    throw error;
                }
                TimeUnit.MILLISECONDS.sleep(200);
            }
        }
    }

    private InetSocketAddress socketAddress() {
        int colon = address.lastIndexOf(':');
        if (colon < 1) {
            throw new IllegalArgumentException("the address is not of the form host:port");
        }
        String host = address.substring(0, colon).replaceAll("^\\[|]$", "");
        return new InetSocketAddress(host, Integer.parseInt(address.substring(colon + 1)));
    }

    private void answer(HttpExchange exchange) throws IOException {
        try {
            exchange.sendResponseHeaders(statusOf(exchange), -1);
        } finally {
            exchange.close();
        }
    }

    private int statusOf(HttpExchange exchange) {
        String given = exchange.getRequestHeaders().getFirst("Authorization");
        byte[] expected = ("Bearer " + token).getBytes(UTF_8);
        if (given == null || !MessageDigest.isEqual(expected, given.getBytes(UTF_8))) {
            return 401;
        }
        Matcher request = REQUEST.matcher(exchange.getRequestURI().getPath());
        if (!request.matches()) {
            return 404;
        }
        if (!exchange.getRequestMethod().equals("POST")) {
            return 405;
        }
        return control.accept(request.group(1), request.group(2)) ? 204 : 429;
    }

    @Override
    public String toString() {
        return "The control endpoint " + address;
    }
}
