# Installs the libraries, the header, the command, its manual page, burst.pc and the CMake package. Everything finds its
# prefix from its own place, so that an installed tree can be moved.
include(CMakePackageConfigHelpers)

install(TARGETS burst_shared burst_static EXPORT burstTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/burst.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(BURST_MPI_PACKAGE)
    # Not in the CMake package: who links it has an MPI, and its own way to find it.
    install(TARGETS burst_mpi_shared burst_mpi_static
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(FILES include/burst_mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
install(TARGETS burst_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES docs/burst.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

set(BURST_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/burst)
install(EXPORT burstTargets NAMESPACE burst:: FILE burstTargets.cmake DESTINATION ${BURST_PACKAGE_DIR})
file(WRITE ${PROJECT_BINARY_DIR}/burstConfig.cmake
    "# burst::burst is the shared library, burst::burst_static the archive.\n"
    "include(\"\${CMAKE_CURRENT_LIST_DIR}/burstTargets.cmake\")\n")
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/burstConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/burstConfig.cmake ${PROJECT_BINARY_DIR}/burstConfigVersion.cmake
    DESTINATION ${BURST_PACKAGE_DIR})

# From lib/pkgconfig (or lib/<triplet>/pkgconfig) up to the prefix; the first argument only anchors the computation.
file(RELATIVE_PATH BURST_PC_PREFIX "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
configure_file(cmake/burst.pc.in burst.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/burst.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
