import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;

/**
 * Accepts tokens as Amazon MSK does: the URL of kafka-cluster:Connect, signed (Signature Version 4) with
 * the keys in the system properties msk.key and msk.secret for the region msk.region.
 *
 * <p>It comes to the broker's class path as an agent.
 */
public final class MskTokenValidator implements AuthenticateCallbackHandler {
    private static final String KEY = System.getProperty("msk.key");
    private static final String SECRET = System.getProperty("msk.secret");
    private static final String REGION = System.getProperty("msk.region");
    private static final String HOST = "kafka." + REGION + ".amazonaws.com";
    private static final String UNSIGNED = "X-Amz-Signature";

    public static void premain(String arguments) {}

    @Override
    public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {}

    @Override
    public void handle(Callback[] callbacks) {
        for (Callback callback : callbacks) {
            if (callback instanceof OAuthBearerValidatorCallback validator) {
                try {
                    validator.token(validated(validator.tokenValue()));
                } catch (Exception error) {
                    validator.error("invalid_token", null, null);
                }
            }
        }
    }

    @Override
    public void close() {}

    private static OAuthBearerToken validated(String token) throws Exception {
        String url = new String(Base64.getUrlDecoder().decode(token), StandardCharsets.UTF_8);
        URI uri = URI.create(url);
        TreeMap<String, String> query = new TreeMap<>();
        for (String pair : uri.getRawQuery().split("&")) {
            String[] parts = pair.split("=", 2);
            query.put(parts[0], parts[1]);
        }
        require(uri.getScheme().equals("https") && uri.getHost().equals(HOST));
        require(decoded(query, "Action").equals("kafka-cluster:Connect"));
        require(query.remove("User-Agent") != null);
        String date = decoded(query, "X-Amz-Date");
        String scope = String.join("/", date.substring(0, 8), REGION, "kafka-cluster", "aws4_request");
        require(decoded(query, "X-Amz-Credential").equals(KEY + "/" + scope));
        DateTimeFormatter format = DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'").withZone(ZoneOffset.UTC);
        Instant signed = Instant.from(format.parse(date));
        long lifetime = Long.parseLong(query.get("X-Amz-Expires"));
        require(lifetime <= 900);
        Instant ends = signed.plusSeconds(lifetime);
        require(Instant.now().isBefore(ends));

        String signature = query.remove(UNSIGNED);
        String canonical = String.join("\n", "GET", "/",
            query.entrySet().stream().map(e -> e.getKey() + "=" + e.getValue()).collect(Collectors.joining("&")),
            "host:" + HOST, "", "host", hex(digest("")));
        String toSign = String.join("\n", "AWS4-HMAC-SHA256", date, scope, hex(digest(canonical)));
        byte[] key = ("AWS4" + SECRET).getBytes(StandardCharsets.UTF_8);
        for (String part : scope.split("/")) {
            key = mac(key, part);
        }
        require(hex(mac(key, toSign)).equals(signature));
        return new Accepted(token, signed.toEpochMilli(), ends.toEpochMilli());
    }

    private record Accepted(String value, Long startTimeMs, long lifetimeMs) implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public String principalName() {
            return KEY;
        }
    }

    private static String decoded(Map<String, String> query, String name) {
        return URLDecoder.decode(query.get(name), StandardCharsets.UTF_8);
    }

    private static void require(boolean holds) {
        if (!holds) {
            throw new IllegalArgumentException("not a token of MSK");
        }
    }

    private static byte[] digest(String text) throws Exception {
        return MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
    }

    private static byte[] mac(byte[] key, String text) throws Exception {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key, "HmacSHA256"));
        return mac.doFinal(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }
}
