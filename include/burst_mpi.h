/* burst_mpi.h - ranks that are MPI processes, on any number of machines. Link with libburst_mpi, made for your MPI.
 *
 *   MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
 *   burst_transport *transport = NULL;
 *   burst_status status = burst_transport_create_mpi(MPI_COMM_WORLD, &transport);
 *   if (status == BURST_OK) status = burst_plan_create(&problem, transport, NULL, &plan);
 *   ...
 *   burst_plan_free(plan);
 *   burst_transport_free(transport);
 *   MPI_Finalize();
 *
 * The transport works on a duplicate of the communicator, so that its messages never meet the caller's. It calls MPI only
 * from the thread that calls the library (MPI_THREAD_FUNNELED suffices), and never aborts: errors come back as statuses.
 * Freeing it is collective among ranks whose transport did not fail. */
#ifndef BURST_MPI_H
#define BURST_MPI_H

#include <mpi.h>

#include "burst.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collective over `comm`. */
BURST_API burst_status burst_transport_create_mpi(MPI_Comm comm, burst_transport **transport);

#ifdef __cplusplus
}
#endif
#endif
