#!/bin/bash
# Builds modules nvme-core, nvme-fabrics, nvme-rdma, nvmet and nvmet-rdma with DH-HMAC-CHAP, and the
# groups of RFC 7919, which Debian's kernel lacks, and SHA-512, of Debian's own source against
# Debian's own headers, in the current directory. Argument: the kernel's version.
set -euo pipefail
kernel=$1
source=$(ls -d /usr/src/linux-source-*.tar.xz | sed 's/\.tar\.xz$//')
name=${source##*/} headers=/usr/src/linux-headers-$kernel
tar -xf "$source.tar.xz" "$name"/{drivers/nvme,crypto/dh.c,crypto/dh_helper.c,crypto/sha512_generic.c}
build() { # a directory, and what it is built with
  make -s -j2 -C "$headers" M="$PWD/$name/$1" "${@:2}" modules
}
# The kernel has DH without the groups: only they are registered, and nothing is exported. The
# peer has no DRBG: exponents come from the kernel's generator.
sed -i 's/crypto_register_kpp(&dh)/0/; s/crypto_unregister_kpp(&dh)/(void)0/; /^EXPORT_SYMBOL/d
  s/crypto_get_default_rng()/0/; s/crypto_rng_get_bytes(crypto_default_rng, (u8 \*)key,/0; get_random_bytes(key,/
  s/crypto_put_default_rng()/(void)0/' "$name"/crypto/dh*.c
printf 'obj-m += ffdhe.o sha512_generic.o\nffdhe-y := dh.o dh_helper.o\n' >"$name/crypto/Makefile"
build crypto KCFLAGS="-w -DCONFIG_CRYPTO_DH_RFC7919_GROUPS=1"
build drivers/nvme CONFIG_NVME_AUTH=y CONFIG_NVME_COMMON=m CONFIG_NVME_TARGET_AUTH=y CONFIG_BLK_DEV_NVME= CONFIG_NVME_FC= CONFIG_NVME_TCP= \
  CONFIG_NVME_TARGET_FC= CONFIG_NVME_TARGET_TCP= \
  KCFLAGS="-DCONFIG_NVME_AUTH=1 -DCONFIG_NVME_COMMON_MODULE=1 -DCONFIG_NVME_TARGET_AUTH=1"
find "$name" -name '*.ko' -exec strip --strip-debug {} \; -exec mv {} . \;
rm -rf "$name"
