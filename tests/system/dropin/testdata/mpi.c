// Messages between neighbours of an MPI program, and sums over all ranks. Each result is checked.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;

static void fail(const char *what, size_t at)
{
	printf("rank %d: %s is wrong at %zu\n", rank, what, at);
	fflush(stdout);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

// word returns the content of a message at a place.
static uint32_t word(int from, int round, size_t at) { return 2654435761u * (uint32_t)at + (uint32_t)(from * 1000 + round); }

// around sends messages around the ring of ranks.
static void around(size_t bytes, int rounds)
{
	size_t words = bytes / 4;
	uint32_t *out = malloc(bytes), *in = malloc(bytes);
	int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
	double began = MPI_Wtime(), checking = 0;
	for (int r = 0; r < rounds; r++) {
		double t = MPI_Wtime();
		for (size_t i = 0; i < words; i++)
			out[i] = word(rank, r, i);
		checking += MPI_Wtime() - t;
		MPI_Sendrecv(out, bytes, MPI_BYTE, next, r, in, bytes, MPI_BYTE, last, r, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		t = MPI_Wtime();
		for (size_t i = 0; i < words; i++)
			if (in[i] != word(last, r, i))
				fail("a message", i);
		checking += MPI_Wtime() - t;
	}
	double took = MPI_Wtime() - began - checking;
	if (!rank)
		printf("%zu bytes: %.1f MB/s a rank\n", bytes, bytes * rounds / took / 1e6);
	free(out);
	free(in);
}

// sum adds up vectors of all ranks.
static void sum(int count)
{
	int64_t *mine = malloc(count * sizeof *mine), *all = malloc(count * sizeof *all);
	for (int i = 0; i < count; i++)
		mine[i] = (int64_t)i * (rank + 1);
	MPI_Allreduce(mine, all, count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++)
		if (all[i] != (int64_t)i * ranks * (ranks + 1) / 2)
			fail("a sum", i);
	free(mine);
	free(all);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	around(8, 200);
	around(4096, 100);
	around(1 << 20, 16);
	for (int count = 1; count <= 1 << 18; count *= 8)
		sum(count);
	MPI_Barrier(MPI_COMM_WORLD);
	if (!rank)
		printf("%d ranks: all right\n", ranks);
	MPI_Finalize();
	return 0;
}
