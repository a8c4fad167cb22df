//! The HTTP API over real sockets. Nothing leaves the machine.
//!
//! Reported faults of selection services, and the tests that keep them away:
//!
//! | case | fault | test |
//! |---|---|---|
//! | SEL-03 | a replay is used twice | `pending::a_pending_selection_is_booked_once`, `replay` |
//! | SEL-05 | a replay in another scope | `pending::another_group_or_model_has_other_pending_selections` |
//! | SEL-07 | a duplicate id | `selecting::an_id_is_booked_once_and_freed_once` |
//! | SEL-10 | a call on an unknown or freed id | `lifecycle::calls_on_an_unknown_id_are_404_and_repeated_ones_do_no_harm` |
//! | SEL-11 | `decay_fraction` out of range | `lifecycle::a_decay_fraction_is_a_number_from_0_to_1` |
//! | SEL-12 | more effective tokens than input | `lifecycle::effective_prefill_tokens_are_charged_up_to_the_length_of_the_prompt` |
//! | SEL-14 | a PATCH wipes the rest | `catalog::a_patch_changes_what_it_names_and_keeps_the_rest` |
//! | SEL-17 | ids above 2^53 | `selecting::ids_of_64_bits_survive` |
//! | SEL-19 | ranks that do not begin at 0 | `selecting::ranks_begin_where_the_worker_says_and_all_are_used` |
//! | SEL-20 | a booking on a rank that is not there | `lifecycle::a_worker_or_rank_that_is_not_there_is_not_charged` |
//! | SEL-21 | scopes leak | `selecting::models_and_groups_share_neither_workers_nor_load` |
//! | SEL-23 | no worker at all | `inspection::an_empty_service_lives_but_is_not_ready` |
//! | SEL-24 | an incomplete worker | `catalog::an_incomplete_worker_is_kept_with_its_reasons_and_never_chosen` |
//! | SEL-26 | asking charges | `selecting::asking_charges_nothing` |
//! | SEL-27 | ties go to the first worker | `selecting::equal_workers_share_the_requests` |
//! | SEL-28 | a refresh resets the load | `catalog::a_refresh_of_the_catalog_keeps_the_load` |
//! | SEL-31 | a pending selection expires | `pending::a_pending_selection_expires` |
//! | SEL-33 | lists of hashes that do not fit | `selecting::prompts_of_every_form_and_size_are_taken`, `bad_prompts_are_refused_before_anything_else` |
//! | SEL-34 | an empty prompt | `selecting::prompts_of_every_form_and_size_are_taken` |
//! | SEL-35 | the shape of an answer without overlap | `selecting::a_cold_answer_lists_the_rank_with_zero_and_omits_an_absent_id` |
//! | SEL-36 | the list of peers | `replicas::peers_come_and_go_and_are_listed_in_order`, `inspection::peers_are_refused_while_synchronization_is_disabled` |
//! | SEL-39 | HTTP manners | `manners` |
//! | SEL-40 | IPv6 endpoints | `catalog::endpoints_may_be_ipv6` |
//! | SEL-44 | a reservation without an id | `lifecycle::a_reservation_needs_an_id` |
//! | SEL-45 | odd characters in an id | `lifecycle::an_id_of_any_characters_can_be_freed` |
//! | SEL-46 | the sample of the guide | `selecting::the_samples_of_the_guide_work_as_printed` |
//!
//! What a published service was seen to do wrong when it was run:
//!
//! | fault | test |
//! |---|---|
//! | numbers that overflow stop a partition and hide all loads | `manners::no_number_stops_a_partition_or_hides_anothers_load` |
//! | chains stored and removed leave memory behind | core: `index::tests::model`; here: `events::ingest`, `what_is_remembered_does_not_grow_with_time` |
//! | 500 when the worker leaves while it is chosen | `it`: `draining::a_removed_worker_is_draining_until_the_selections_under_way_have_ended` |
//! | an empty id is booked and cannot be freed | `selecting::an_id_that_no_route_could_name_is_not_booked` |
//! | a map, byte hashes, one unknown event or block size lose a batch | `events::wire`: `a_batch_may_be_a_map`, `byte_hashes_fold_to_their_last_eight_bytes`, `a_bad_event_leaves_the_others_of_its_batch`; `it`: `events::a_block_size_that_cannot_be_reconciled_shows_in_the_workers_record` |
//! | a block stored again in mid-chain is not found | core: `a_block_removed_in_mid_chain_hides_what_is_behind_it_until_stored_again` |
//! | removing one of two copies drops the block | core: `two_copies_need_two_removals` |
//! | a store without tokens in a lower tier is lost | `events::ingest`: `a_placeholder_is_what_the_rank_knows_by_that_name` |
//! | a peer's dump pins its block size | `it`: `recovery::a_dump_pins_no_block_size_and_registers_nobody` |
//! | a restarted engine is ignored, a silent replay makes a rank deaf | `it`: `events::a_restarted_engine_is_forgotten_and_followed_again`, `a_replay_that_never_comes_does_not_stop_the_stream` |
//! | a PATCH of the model does nothing, null is ignored | `catalog::null_clears_and_a_model_moves_the_worker` |
//! | errors name no field | `manners::numbers_out_of_range_are_refused_by_name`, `selecting::bad_prompts_are_refused_before_anything_else` |
//! | SIGTERM kills it | root: `select_service::after_sigterm_it_is_not_ready_and_callers_under_way_are_answered` |

#![allow(clippy::unwrap_used, clippy::panic)]

mod approximate;
mod busy;
mod catalog;
mod connections;
mod dump;
mod embed;
mod inspection;
mod lifecycle;
mod manners;
mod pending;
mod pki;
mod recovery;
mod refusals;
mod replay;
mod replicas;
mod rig;
mod security;
mod selecting;
mod shared_cache;
mod storm;
