//! Connects to Redis, and finds the limiter that a command names.

use std::{fs, path::PathBuf, time::Duration};

use http::{Request, request::Parts};
use tower_ratelimit::{
    Limit, RateLimitLayer, RedisStore, RedisStoreBuilder, Rule,
    key::{Key, KeyExtractor, NoKey, Secret},
};
use url::Url;

use crate::Stop;

/// No request waits for what a command asks: a slow server is no error so soon.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server that a command asks, and as which client.
#[derive(clap::Args)]
pub(crate) struct RedisOptions {
    /// The address of Redis
    ///
    /// `redis://` or `rediss://`; with `--cluster` several, separated by commas.
    #[arg(
        long,
        env = "REDIS_URL",
        hide_env_values = true,
        value_delimiter = ',',
        required = true
    )]
    redis: Vec<String>,
    /// The addresses are nodes of a Redis Cluster
    #[arg(long)]
    cluster: bool,
    /// The file with the password
    ///
    /// Without it, the password is in REDIS_PASSWORD, or there is none.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// The prefix of rules' names
    #[arg(long, default_value = "ratelimit")]
    prefix: String,
    /// The client whose part of a limit is meant
    ///
    /// Of a limit per client, which each has for itself: the id of a Redisson instance, or what a
    /// service gives to `client_id`. `diagnose` lists those that have keys.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
}

impl RedisOptions {
    /// Opens the store. Nothing is sent yet.
    pub(crate) fn open(&self) -> Result<RedisStore, Stop> {
        let password = match &self.password_file {
            Some(file) => Some(read(file)?),
            None => std::env::var("REDIS_PASSWORD").ok(),
        };
        let addresses: Vec<_> = self
            .redis
            .iter()
            .map(|address| with_password(address, password.as_deref()))
            .collect::<Result<_, _>>()?;
        let builder: RedisStoreBuilder = match (&*addresses, self.cluster) {
            (all, true) => RedisStore::cluster(all),
            ([one], false) => RedisStore::builder(one),
            _ => return Err(Stop::usage("several addresses are for `--cluster`")),
        };
        let builder = builder.prefix(&self.prefix).summary(None);
        let builder = builder.connect_timeout(PATIENCE).response_timeout(PATIENCE);
        Ok(match &self.client {
            Some(client) => builder.client_id(client),
            None => builder,
        }
        .build()?)
    }

    /// Returns whether a rule makes names like this one.
    pub(crate) fn makes(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&self.prefix);
        rest.is_some_and(|rest| rest.starts_with(":{"))
    }
}

fn read(file: &PathBuf) -> Result<String, Stop> {
    let refuse = |error| format!("{} cannot be read: {error}", file.display());
    let text = fs::read_to_string(file).map_err(refuse)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn with_password(address: &str, password: Option<&str>) -> Result<String, Stop> {
    let Some(password) = password else {
        return Ok(address.to_owned());
    };
    // The address itself is not shown: it may hold another password.
    let refused =
        || Stop::usage("no password can be put into this address of Redis: write one that has it");
    let mut url = Url::parse(address).map_err(|_| refused())?;
    url.set_password(Some(password)).map_err(|()| refused())?;
    Ok(url.into())
}

/// Which limiter: by its name in Redis, or by rule and key.
#[derive(clap::Args)]
pub(crate) struct Which {
    /// The limiter's name in Redis, which Java calls it by, too
    #[arg(required_unless_present = "rule", conflicts_with_all = ["rule", "key", "secret"])]
    name: Option<String>,
    /// The name of a rule, with tiers `<rule>.<tier>`
    #[arg(long, requires = "key")]
    rule: Option<String>,
    /// A component of the rule's key, in their order
    #[arg(long, value_name = "TEXT")]
    key: Vec<String>,
    /// The secret of digested keys, and its file
    #[arg(long, value_name = "ID=FILE")]
    secret: Option<String>,
}

impl Which {
    /// Returns the limiter's name in Redis.
    pub(crate) fn name(&self, store: &RedisStore) -> Result<String, Stop> {
        let Some(rule) = &self.rule else {
            return Ok(self.name.clone().unwrap_or_default());
        };
        // A layer with a rule of this name encodes the key as any service does.
        let key = GivenKey(self.key.clone());
        let limit = Limit::per_second(1);
        let rule = match &self.secret {
            Some(secret) => Rule::new(rule, limit, key.digest(&secret_of(secret)?)),
            None => Rule::new(rule, limit, key),
        };
        let layer = RateLimitLayer::builder(store).otherwise(rule).build()?;
        let (request, ()) = Request::new(()).into_parts();
        match &*layer.limiters_of(&request) {
            [limiter, ..] => Ok(limiter.name().to_owned()),
            [] => Err(Stop::usage("the key is empty")),
        }
    }
}

/// The key of every request.
#[derive(Clone, Debug)]
struct GivenKey(Vec<String>);

impl KeyExtractor for GivenKey {
    fn extract(&self, _: &Parts, key: &mut Key) -> Result<(), NoKey> {
        self.0.iter().for_each(|component| key.push(component));
        Ok(())
    }
}

fn secret_of(given: &str) -> Result<Secret, Stop> {
    let Some((id, file)) = given.split_once('=') else {
        return Err(Stop::usage(
            "write a secret as its id and its file, as in `k1=secret.txt`",
        ));
    };
    Ok(Secret::new(id, read(&PathBuf::from(file))?)?)
}
