import io.github.bucket4j.Bucket;
import io.github.bucket4j.BucketConfiguration;
import io.github.bucket4j.ConfigurationBuilder;
import io.github.bucket4j.distributed.AsyncBucketProxy;
import io.github.bucket4j.distributed.ExpirationAfterWriteStrategy;
import io.github.bucket4j.distributed.proxy.AsyncProxyManager;
import io.github.bucket4j.distributed.proxy.RemoteAsyncBucketBuilder;
import io.github.bucket4j.distributed.proxy.optimization.Optimizations;
import io.github.bucket4j.redis.lettuce.Bucket4jLettuce;
import io.lettuce.core.RedisClient;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.codec.RedisCodec;
import io.lettuce.core.codec.StringCodec;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;

/** Bucket4j over Lettuce, as bucket4j.rs tells. The system property {@code batching} puts callers of a bucket together. */
final class AskBucket4j {
    private AskBucket4j() {}

    public static void main(String[] arguments) throws Exception {
        RedisClient client = RedisClient.create("redis://127.0.0.1:" + arguments[0]);
        AsyncProxyManager<String> buckets = Bucket4jLettuce
                .casBasedBuilder(client.connect(RedisCodec.of(StringCodec.UTF8, ByteArrayCodec.INSTANCE)))
                .expirationAfterWrite(
                        ExpirationAfterWriteStrategy.basedOnTimeForRefillingBucketUpToMax(Duration.ofMinutes(1)))
                .build()
                .asAsync();
        ConfigurationBuilder builder = BucketConfiguration.builder();
        for (long[] limit : Ask.limits(arguments)) {
            builder.addLimit(it -> it.capacity(limit[0]).refillGreedy(limit[0], Duration.ofSeconds(limit[1])));
        }
        BucketConfiguration configuration = builder.build();
        boolean batching = Boolean.getBoolean("batching");
        // "7.7.0.RELEASE/1960d49": the number alone.
        String lettuce = RedisClient.class.getPackage().getImplementationVersion().split("\\.RELEASE")[0];
        String version = Bucket.class.getPackage().getImplementationVersion() + " with Lettuce " + lettuce;
        Ask.serve(version, name -> {
            RemoteAsyncBucketBuilder<String> one = buckets.builder();
            if (batching) {
                one = one.withOptimization(Optimizations.batching());
            }
            AsyncBucketProxy bucket = one.build(name, () -> CompletableFuture.completedFuture(configuration));
            return (cost, then) -> bucket.tryConsumeAndReturnRemaining(cost).whenComplete((probe, error) -> {
                if (error != null) {
                    then.answered(Ask.Answer.FAILED, -1);
                } else if (probe.isConsumed()) {
                    then.answered(Ask.Answer.ADMITTED, -1);
                } else {
                    then.answered(Ask.Answer.REFUSED, probe.getNanosToWaitForRefill());
                }
            });
        });
    }
}
