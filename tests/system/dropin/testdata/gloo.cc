// gloo RANK RANKS DIRECTORY GID: a process of a group that uses Gloo over its transport ibverbs. The
// group meets by files in DIRECTORY. GID is the index of the device's GID. The numbers that come
// back are compared with what they must be.
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

// check ends the process if a number is not as it must be.
static void check(const char *what, size_t i, long got, long want)
{
	if (got == want)
		return;
	printf("%s: number %zu is %ld, want %ld\n", what, i, got, want);
	exit(1);
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	const int rank = atoi(argv[1]), ranks = atoi(argv[2]);
	const size_t count = 256 << 10, rounds = 8;
	gloo::transport::ibverbs::attr attr{"softrnic0", 1, atoi(argv[4])};
	auto device = gloo::transport::ibverbs::CreateDevice(attr);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
	context->connectFullMesh(std::make_shared<gloo::rendezvous::FileStore>(argv[3]), device);
	const long of_all = ranks * (ranks + 1) / 2;

	for (size_t round = 0; round < rounds; round++) {
		std::vector<long> in(count), out(count);
		for (size_t i = 0; i < count; i++)
			in[i] = long(i + round) * (rank + 1);

		gloo::AllreduceOptions sum(context);
		sum.setInput(in.data(), count);
		sum.setOutput(out.data(), count);
		sum.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<long>));
		gloo::allreduce(sum);
		for (size_t i = 0; i < count; i++)
			check("allreduce", i, out[i], long(i + round) * of_all);

		gloo::AllreduceRingChunked<long>(context, {in.data()}, count).run();
		for (size_t i = 0; i < count; i++)
			check("allreduce in a ring", i, in[i], long(i + round) * of_all);

		std::vector<long> own(count / 16, rank + round), all(own.size() * ranks);
		gloo::AllgatherOptions gather(context);
		gather.setInput(own.data(), own.size());
		gather.setOutput(all.data(), all.size());
		gloo::allgather(gather);
		for (size_t i = 0; i < all.size(); i++)
			check("allgather", i, all[i], i / own.size() + round);

		std::vector<long> said(count, rank == 0 ? round + 7 : 0);
		gloo::BroadcastOptions broadcast(context);
		broadcast.setOutput(said.data(), said.size());
		broadcast.setRoot(0);
		gloo::broadcast(broadcast);
		for (size_t i = 0; i < count; i++)
			check("broadcast", i, said[i], round + 7);

		gloo::BarrierOptions barrier(context);
		gloo::barrier(barrier);
	}
	printf("rank %d: all right\n", rank);
	return 0;
}
