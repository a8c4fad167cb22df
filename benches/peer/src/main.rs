fn main() {
    println!("{}", std::any::type_name::<dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed>());
}
