#!/usr/bin/env bash
# Installs a Vulkan driver that SAPIEN (ManiSkill's simulator) can render with, on Debian and its descendants; as root.
#
# Without a GPU that is lavapipe, Mesa's software driver, in the package mesa-vulkan-drivers. Debian 12 itself has Mesa 22,
# which lacks a feature that SAPIEN needs; its backports have a newer one. They are read for this one installation only:
# the machine's own list of sources stays as it is.
set -euo pipefail

package=mesa-vulkan-drivers
oldest=23

if ! command -v apt-get >/dev/null; then
    echo "There is no apt-get here; install Mesa's Vulkan drivers, version $oldest or newer, the way your system does." >&2
    exit 1
fi
# What stands before the first dot, without an epoch.
major() { local version=${1#*:}; echo "${version%%.*}"; }
installed=$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null || true)
if [ -n "$installed" ] && [ "$(major "$installed")" -ge "$oldest" ]; then
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "Installing $package needs root: sudo $0" >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
install=(apt-get install -y -qq --no-install-recommends)
apt-get update -qq
candidate=$(apt-cache policy "$package" | sed -n 's/^ *Candidate: //p')
if [ -n "$candidate" ] && [ "$candidate" != "(none)" ] && [ "$(major "$candidate")" -ge "$oldest" ]; then
    "${install[@]}" "$package" libvulkan1
    exit 0
fi

# The backports of this release lie where the release itself comes from.
. /etc/os-release
source=$(apt-get indextargets --format '$(SITE)|$(RELEASE)|$(COMPONENT)|' 'Identifier: Packages' |
    grep "|$VERSION_CODENAME|main|" | head -1 || true)
if [ -z "$source" ]; then
    echo "$package here is '$candidate', SAPIEN needs Mesa $oldest or newer; no source of backports was found." >&2
    exit 1
fi
site=${source%%|*}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
signed=""
[ -e "$keyring" ] && signed="[signed-by=$keyring] "
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
mkdir -p "$temporary/lists/partial" "$temporary/parts"
chmod 755 "$temporary"
cp -r /etc/apt/sources.list.d/. "$temporary/parts/"
echo "deb $signed$site $VERSION_CODENAME-backports main" >"$temporary/parts/backports.list"
options=(-o "Dir::Etc::SourceParts=$temporary/parts" -o "Dir::State::Lists=$temporary/lists")
apt-get "${options[@]}" update -qq
"${install[@]}" "${options[@]}" -t "$VERSION_CODENAME-backports" "$package" libvulkan1
