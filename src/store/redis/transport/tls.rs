//! TLS: which certificates are believed and shown, and what to do when one is refused.

use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, ErrorKind as RedisKind, RedisError, TlsCertificates};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::error::{ConfigError, ConfigErrorKind, Error, ErrorKind};

/// Sees to it that there is a provider of cryptography, where the process has chosen none: redis-rs takes the process' own,
/// and rustls panics where there is none, or several to choose from.
pub(crate) fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // Fails only where somebody else has chosen meanwhile.
        let _ = ring::default_provider().install_default();
    }
}

pub(crate) fn is_wanted(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// Finds at once what would fail each connection: what is no certificate, and a key of another one.
pub(crate) fn check(certificates: &TlsCertificates) -> Result<(), ConfigError> {
    let mut roots = RootCertStore::empty();
    if let Some(pem) = &certificates.root_cert {
        let unreadable = || unusable("the one of the authority is no certificate in PEM");
        for root in read(pem).ok_or_else(unreadable)? {
            roots.add(root).map_err(|_| unreadable())?;
        }
    }
    let Some(own) = &certificates.client_tls else {
        return Ok(());
    };
    let chain = read(&own.client_cert)
        .ok_or_else(|| unusable("the one of this process is no certificate in PEM"))?;
    // Not the reader's own words: they may repeat a line of the key.
    let key = PrivateKeyDer::from_pem_slice(&own.client_key)
        .map_err(|_| unusable("the key of this process is no private key in PEM"))?;
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(ring::default_provider()));
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| {
            config
                .with_root_certificates(roots)
                .with_client_auth_cert(chain, key)
        })
        .map_err(|_| unusable("the key of this process is not that of its certificate"))?;
    Ok(())
}

/// Returns the error of certificates that cannot be used. Nothing of them is shown.
pub(crate) fn unusable(reason: &str) -> ConfigError {
    ConfigErrorKind::Store.error(format!("the certificates for TLS cannot be used: {reason}"))
}

pub(crate) fn no_tls() -> ConfigError {
    unusable("TLS begins with an address of `rediss://`")
}

fn read(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found.ok().filter(|found| !found.is_empty())
}

/// The same address, with certificates.
pub(crate) fn equip(
    info: &ConnectionInfo,
    certificates: TlsCertificates,
) -> Result<ConnectionInfo, ConfigError> {
    let client = redis::Client::build_with_tls(info.clone(), certificates).map_err(|_| no_tls())?;
    Ok(client.get_connection_info().clone())
}

/// What an error says about certificates, and what to do then; `None` if it is about something else.
///
/// By rustls' own words: from a Cluster redis-rs hands on nothing else.
pub(crate) fn refusal(error: &RedisError) -> Option<Error> {
    let by_tls = matches!(error.kind(), RedisKind::Io | RedisKind::InvalidClientConfig);
    let text = by_tls.then(|| error.to_string())?;
    let (_, remedy) = REMEDIES.iter().find(|(words, _)| text.contains(words))?;
    Some(
        Error::new(ErrorKind::Tls)
            .detail(*remedy)
            .caused_by(error.clone()),
    )
}

/// What rustls says, or is told by the other side, and what to do; the first that fits.
const REMEDIES: &[(&str, &str)] = &[
    (
        "invalid peer certificate: UnknownIssuer",
        "Redis' certificate comes from no authority that is trusted here: give `RedisStoreBuilder::certificates` the authority's",
    ),
    (
        "invalid peer certificate: certificate expired",
        "Redis' certificate has expired: renew it there, and look whether this machine's clock is right",
    ),
    (
        "invalid peer certificate: certificate not valid yet",
        "Redis' certificate is not valid yet: look whether this machine's clock is right",
    ),
    (
        "invalid peer certificate: certificate not valid for name",
        "Redis' certificate is not for the host in the address: use a name that it has, or have it issued for this one",
    ),
    (
        "invalid peer certificate",
        "Redis' certificate cannot be used: have it issued anew",
    ),
    (
        "received fatal alert: CertificateRequired",
        "Redis wants a certificate of this process: give one to `RedisStoreBuilder::certificates`",
    ),
    (
        "received fatal alert: CertificateExpired",
        "the certificate that this process shows has expired: renew it",
    ),
    (
        "received fatal alert: UnknownCA",
        "Redis does not know the authority of the certificate that this process shows: put it into `tls-ca-cert-file` there",
    ),
    (
        "received fatal alert: BadCertificate",
        "Redis refuses the certificate that this process shows: have it issued anew, for clients",
    ),
    (
        "received fatal alert: UnsupportedCertificate",
        "Redis refuses the certificate that this process shows: have it issued anew, for clients",
    ),
    (
        "received fatal alert: CertificateUnknown",
        "Redis refuses the certificate that this process shows: have it issued anew, for clients",
    ),
    (
        "received fatal alert: HandshakeFailure",
        "Redis refuses the handshake: it may want a certificate of this process (`RedisStoreBuilder::certificates`), or has no cipher in \
         common with it",
    ),
    (
        "received fatal alert: ProtocolVersion",
        "Redis speaks neither TLS 1.2 nor 1.3: switch one on in `tls-protocols` there",
    ),
    (
        "peer is incompatible",
        "Redis' TLS has nothing in common with this process': switch TLS 1.2 or 1.3 on in `tls-protocols` there",
    ),
    (
        "received corrupt message",
        "what answers does not speak TLS: use the port of `tls-port`, or `redis://` without it",
    ),
    (
        "tls-rustls-insecure",
        "`#insecure` believes anybody, and is not built in: give `RedisStoreBuilder::certificates` the authority's certificate",
    ),
    (
        "invalid dns name",
        "the host in the address is no name that a certificate can have",
    ),
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
        // Redis-rs takes the first two for a list of no authorities, and would then believe nobody.
        let torn = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for pem in [&b""[..], b"nothing", torn] {
            let error = check(&root(pem)).unwrap_err();
            assert_eq!(error.kind(), ConfigErrorKind::Store);
            assert!(
                error
                    .reason()
                    .ends_with("the authority is no certificate in PEM")
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
    fn what_a_server_says_is_not_taken_for_tls() {
        let said = RedisError::from((
            RedisKind::Client,
            "said",
            "invalid peer certificate: UnknownIssuer".to_owned(),
        ));
        assert!(refusal(&said).is_none());
        let met = RedisError::from((
            RedisKind::Io,
            "met",
            "invalid peer certificate: UnknownIssuer".to_owned(),
        ));
        let refusal = refusal(&met).expect("a refusal");
        assert_eq!(refusal.kind(), ErrorKind::Tls);
        assert!(
            refusal
                .to_string()
                .contains("RedisStoreBuilder::certificates")
        );
    }
}
