//! Prints the description of the HTTP API, as `docs/openapi.json` keeps it.

fn main() {
    print!("{}", pointsman_service::http::openapi_json());
}
