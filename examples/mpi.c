/* mpi.c - an attention over MPI processes, on any number of machines.
 * Build: mpicc mpi.c $(pkg-config --cflags --libs burst) -lburst_mpi -lm       Run: mpirun -n 4 ./mpi */
#include "attend.h"
#include "burst_mpi.h"

int main(int count, char **arguments) {
    int provided = 0, rank = 0, size = 1;
    burst_transport *transport = NULL;
    MPI_Init_thread(&count, &arguments, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    burst_status status = burst_transport_create_mpi(MPI_COMM_WORLD, &transport);
    if (status == BURST_OK) status = attend(transport);
    if (rank == 0) printf("%d ranks: %s\n", size, status == BURST_OK ? "ok" : burst_last_error());
    burst_transport_free(transport);
    MPI_Finalize();
    return status != BURST_OK;
}
