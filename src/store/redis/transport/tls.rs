//! TLS: the certificates that are trusted and presented, and the errors about them.

use std::sync::Arc;

use redis::{ErrorKind as RedisKind, RedisError, TlsCertificates};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::values::error::{ConfigError, Error, ErrorKind, config_error};

/// Installs a provider of cryptography if the process has chosen none: redis-rs uses the process'
/// own, and rustls panics if there is none, or several to choose from.
pub(super) fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // Fails only if another provider was installed meanwhile.
        let _ = ring::default_provider().install_default();
    }
}

/// Returns at once what would fail each connection: an invalid certificate, or a key of another
/// one.
pub(crate) fn check(certificates: &TlsCertificates) -> Result<(), ConfigError> {
    let mut roots = RootCertStore::empty();
    if let Some(pem) = &certificates.root_cert {
        let unreadable =
            || unusable("the certificate of the authority is not a certificate in PEM");
        for root in read(pem).ok_or_else(unreadable)? {
            roots.add(root).map_err(|_| unreadable())?;
        }
    }
    let Some(own) = &certificates.client_tls else {
        return Ok(());
    };
    let chain = read(&own.client_cert)
        .ok_or_else(|| unusable("the certificate of this process is not a certificate in PEM"))?;
    // Not the parser's own message: it may repeat a line of the key.
    let key = PrivateKeyDer::from_pem_slice(&own.client_key)
        .map_err(|_| unusable("the key of this process is not a private key in PEM"))?;
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(ring::default_provider()));
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| {
            config
                .with_root_certificates(roots)
                .with_client_auth_cert(chain, key)
        })
        .map_err(|_| unusable("the key of this process does not match its certificate"))?;
    Ok(())
}

/// Returns the error of certificates that cannot be used. Nothing of them is shown.
pub(crate) fn unusable(reason: &str) -> ConfigError {
    config_error!(Store: "the certificates for TLS cannot be used: {reason}")
}

fn read(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found.ok().filter(|found| !found.is_empty())
}

/// Returns the error of kind `Tls` if this one is about certificates or the handshake.
///
/// By rustls' own words: from a Cluster redis-rs hands on nothing else. The page on failure has
/// what to do for each.
pub(crate) fn refusal(error: &RedisError) -> Option<Error> {
    let by_tls = matches!(error.kind(), RedisKind::Io | RedisKind::InvalidClientConfig);
    let text = by_tls.then(|| error.to_string())?;
    let refused = REFUSALS.iter().any(|words| text.contains(words));
    refused.then(|| {
        Error::new(ErrorKind::Tls)
            .detail("see the section TLS of `docs::failure`")
            .caused_by(error.clone())
    })
}

const REFUSALS: [&str; 6] = [
    "invalid peer certificate",
    "received fatal alert",
    "peer is incompatible",
    "received corrupt message",
    "tls-rustls-insecure",
    "invalid dns name",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn root(pem: &[u8]) -> TlsCertificates {
        TlsCertificates {
            client_tls: None,
            root_cert: Some(pem.to_vec()),
        }
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        // Redis-rs takes the first two for a list without authorities, and would then trust none.
        let torn = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for pem in [&b""[..], b"nothing", torn] {
            let error = check(&root(pem)).unwrap_err();
            assert_eq!(error.kind(), crate::ConfigErrorKind::Store);
            assert!(
                error
                    .reason()
                    .ends_with("the authority is not a certificate in PEM")
            );
        }
        let none = TlsCertificates {
            client_tls: None,
            root_cert: None,
        };
        assert_eq!(check(&none), Ok(()));
    }

    #[test]
    fn there_is_a_provider_once_it_is_needed() {
        choose_provider();
        assert!(CryptoProvider::get_default().is_some());
    }

    #[test]
    fn a_server_message_is_not_taken_for_tls() {
        let refused = |kind| {
            let detail = "invalid peer certificate: UnknownIssuer".to_owned();
            refusal(&RedisError::from((kind, "met", detail)))
        };
        assert!(refused(RedisKind::Client).is_none());
        let refused = refused(RedisKind::Io).expect("a refusal");
        assert_eq!(refused.kind(), ErrorKind::Tls);
    }
}
