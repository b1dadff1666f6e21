import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Asks the real Redisson for permits as fast as it can, so many calls in flight, in turn from so many limiters.
 *
 * <pre>
 * java -cp 'JARS/*' Flood.java PORT PREFIX KEYS IN_FLIGHT
 * </pre>
 *
 * Says its version when it is ready. Then each line of stdin is a time in milliseconds, and each answer how many permits
 * were granted, and in how many microseconds. Redisson's own defaults in everything.
 */
public final class Flood {
    private final RRateLimiter[] limiters;
    private final AtomicLong place = new AtomicLong();
    private final AtomicLong granted = new AtomicLong();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private volatile long end;
    private volatile CountDownLatch running;

    private Flood(RRateLimiter[] limiters) {
        this.limiters = limiters;
    }

    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + arguments[0]);
        RedissonClient client = Redisson.create(config);
        RRateLimiter[] limiters = new RRateLimiter[Integer.parseInt(arguments[2])];
        for (int i = 0; i < limiters.length; i++) {
            limiters[i] = client.getRateLimiter(String.format("%s%07d", arguments[1], i));
        }
        Flood flood = new Flood(limiters);
        System.out.println(Redisson.class.getPackage().getImplementationVersion());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(flood.run(Long.parseLong(line), Integer.parseInt(arguments[3])));
        }
        // Netty's threads would keep the process alive.
        System.exit(0);
    }

    private String run(long millis, int inFlight) throws InterruptedException {
        granted.set(0);
        running = new CountDownLatch(inFlight);
        long begin = System.nanoTime();
        end = begin + millis * 1_000_000;
        for (int i = 0; i < inFlight; i++) {
            next();
        }
        running.await();
        long micros = (System.nanoTime() - begin) / 1000;
        return failure.get() == null ? granted + " " + micros : String.valueOf(failure.get());
    }

    /** One call after the other, each begun when the last has been answered. */
    private void next() {
        if (System.nanoTime() >= end || failure.get() != null) {
            running.countDown();
            return;
        }
        int limiter = (int) (place.getAndIncrement() % limiters.length);
        limiters[limiter].tryAcquireAsync().whenComplete((taken, error) -> {
            if (error != null) {
                failure.compareAndSet(null, error);
            } else if (!taken) {
                failure.compareAndSet(null, new IllegalStateException("refused"));
            } else {
                granted.incrementAndGet();
            }
            next();
        });
    }
}
