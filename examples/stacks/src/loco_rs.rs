//! loco: the layer in `after_routes`.

use axum::Router;
use loco_rs::{
    app::Hooks,
    boot::{BootResult, StartMode, create_app},
    config::Config,
    controller::AppRoutes,
    environment::Environment,
    prelude::*,
    task::Tasks,
};
use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};

/// Stands for yours.
#[derive(Debug)]
pub struct App;

#[async_trait]
impl Hooks for App {
    fn app_name() -> &'static str {
        "stacks"
    }

    async fn boot(
        mode: StartMode,
        environment: &Environment,
        config: Config,
    ) -> Result<BootResult> {
        create_app::<Self>(mode, environment, config).await
    }

    fn routes(_: &AppContext) -> AppRoutes {
        let orders = Routes::new().add("/orders", axum::routing::get(async || "tea, cake\n"));
        AppRoutes::empty().add_route(orders)
    }

    /// loco's own server records the peer's address. What loco's middlewares do, they do inside.
    async fn after_routes(router: Router, _: &AppContext) -> Result<Router> {
        let limit = RateLimitLayer::new(&MemoryStore::new(), Limit::per_minute(2).by(PeerIp));
        Ok(router.layer(limit))
    }

    async fn connect_workers(_: &AppContext, _: &Queue) -> Result<()> {
        Ok(())
    }

    fn register_tasks(_: &mut Tasks) {}
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use loco_rs::boot::ServeParams;
    use serde_json::json;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::ask::{ask, statuses};

    #[tokio::test]
    async fn its_own_server_limits_by_address() {
        let free = TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        let config = json!({
            "logger": { "enable": false, "level": "off", "format": "compact" },
            "workers": { "mode": "ForegroundBlocking" },
            "server": { "port": free.port(), "host": "http://localhost" },
        });
        let config = serde_json::from_value(config).unwrap();
        let boot = App::boot(StartMode::ServerOnly, &Environment::Test, config)
            .await
            .unwrap();
        let params = ServeParams {
            port: i32::from(free.port()),
            binding: "127.0.0.1".to_owned(),
        };
        tokio::spawn(async move {
            App::serve(boot.router.unwrap(), &boot.app_context, &params)
                .await
                .unwrap();
        });
        until_it_listens(free).await;
        assert_eq!(
            statuses(free, "GET /orders", &["", "", ""]).await,
            [200, 200, 429]
        );
        ask(free, "GET /orders", "", "").await.assert_refused();
    }

    async fn until_it_listens(server: SocketAddr) {
        while TcpStream::connect(server).await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}
