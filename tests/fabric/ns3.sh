#!/bin/sh
# Builds HPCC's simulator, ns-3 with RDMA, in a new directory. TestNS3 compares with it:
#
#   sh tests/fabric/ns3.sh /tmp/ns3
#   SOFTRNIC_LONG=1 SOFTRNIC_NS3=/tmp/ns3 go test ./tests/fabric -run '^TestNS3$' -v
#
# It needs git, g++, Python 2.7, which the variable PYTHON names, and 10 minutes of a processor.
# Its waf does not run on Python 3. Its warnings are errors for newer compilers. With CXXFLAGS, its
# waf adds no -O3 of its own.
set -e
dir=$1
git clone https://github.com/alibaba-edu/High-Precision-Congestion-Control "$dir"
cd "$dir/simulation"
git checkout 9f4be2a9ead8a90e8bf732c66bd758c00e58e5be
PATH=$(dirname "$(command -v "${PYTHON:-python2.7}")"):$PATH
CXXFLAGS="-O3 -std=gnu++11 -fpermissive -w" "${PYTHON:-python2.7}" waf configure -d optimized --disable-python \
	--enable-modules=core,network,internet,point-to-point,applications,mpi,bridge,config-store,tools,stats
"${PYTHON:-python2.7}" waf build
