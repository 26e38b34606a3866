//! Listening on every address of a machine, whatever families it has.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;

/// Linux's error of a socket family that the kernel does not have, as one that was started with `ipv6.disable=1`.
const EAFNOSUPPORT: i32 = 97;

/// Listens on `address`. `[::]` takes IPv4 as well; where there is no IPv6 it means `0.0.0.0`.
///
/// # Errors
///
/// The address cannot be listened on.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    first(address, TcpListener::bind).await
}

async fn first<L, B>(address: SocketAddr, bind: impl Fn(SocketAddr) -> B) -> io::Result<L>
where
    B: Future<Output = io::Result<L>>,
{
    match bind(address).await {
        Err(error) if is_every(address) && is_missing(&error) => {
            let instead = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            tracing::info!(%address, %instead, "this machine has no IPv6");
            bind(instead).await
        }
        bound => bound,
    }
}

fn is_every(address: SocketAddr) -> bool {
    address.is_ipv6() && address.ip().is_unspecified()
}

fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EAFNOSUPPORT) || error.kind() == io::ErrorKind::AddrNotAvailable
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Binds as a machine without IPv6 does.
    async fn without_ipv6(address: SocketAddr) -> io::Result<SocketAddr> {
        match address {
            SocketAddr::V4(_) => Ok(address),
            SocketAddr::V6(_) => Err(io::Error::from_raw_os_error(EAFNOSUPPORT)),
        }
    }

    #[tokio::test]
    async fn every_address_is_listened_on_without_ipv6() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(first(at("[::]:8080"), without_ipv6).await.unwrap(), at("0.0.0.0:8080"));
        assert_eq!(first(at("0.0.0.0:8080"), without_ipv6).await.unwrap(), at("0.0.0.0:8080"));
        // An address that was asked for by itself is not another one.
        first(at("[::1]:8080"), without_ipv6).await.unwrap_err();
        // So does a kernel that has the family and no address of it.
        let without_address = async |address: SocketAddr| match address {
            SocketAddr::V4(_) => Ok(address),
            SocketAddr::V6(_) => Err(io::Error::from(io::ErrorKind::AddrNotAvailable)),
        };
        assert_eq!(first(at("[::]:8080"), without_address).await.unwrap(), at("0.0.0.0:8080"));
        let taken = async |_| Err::<(), _>(io::Error::from(io::ErrorKind::AddrInUse));
        first(at("[::]:8080"), taken).await.unwrap_err();
    }

    #[tokio::test]
    async fn both_families_reach_one_listener() {
        let listener = listen("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    }
}
