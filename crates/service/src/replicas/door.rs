//! The part of the service's door by which other replicas are followed and told.

use std::net::SocketAddr;

use super::{Booking, Replicas};
use crate::error::SelectionServiceError;
use crate::reservation::Reservation;
use crate::service::SelectionService;

impl SelectionService {
    /// Follows the load of another replica. False where it is followed already.
    pub fn register_peer(&self, endpoint: &str) -> Result<bool, SelectionServiceError> {
        if self.shared().is_stopping() {
            return Err(SelectionServiceError::PeersUnavailable);
        }
        self.replicas()?.register(endpoint, self.downgrade())
    }

    /// Follows another replica no more. False where it was not followed. What it was heard to hold
    /// stays charged as if it had fallen silent.
    pub fn deregister_peer(&self, endpoint: &str) -> Result<bool, SelectionServiceError> {
        Ok(self.replicas()?.deregister(endpoint))
    }

    /// The peers that are followed, sorted.
    pub fn peers(&self) -> Vec<String> {
        self.replicas().map(Replicas::endpoints).unwrap_or_default()
    }

    /// Where this replica tells the others of its load; `None` where it does not.
    pub fn replica_sync_address(&self) -> Option<SocketAddr> {
        self.replicas().map(Replicas::address).ok()
    }

    fn replicas(&self) -> Result<&Replicas, SelectionServiceError> {
        let replicas = self.shared().replicas.as_ref();
        replicas.ok_or(SelectionServiceError::SyncDisabled)
    }

    /// The other replicas, where there are any, are told of what was charged.
    pub(crate) fn told(
        &self,
        reservation: pointsman_core::Reservation,
        booking: &Booking<'_>,
    ) -> Reservation {
        match &self.shared().replicas {
            Some(replicas) => {
                let teller = replicas.tell(&reservation, booking);
                Reservation::told(reservation, teller)
            }
            None => Reservation::untold(reservation),
        }
    }
}
