/* fa_version.h: the release that the daemon, libfa and fa-cli are built from. */
#ifndef FA_VERSION_H
#define FA_VERSION_H

#define FA_VERSION "0.1.0"

#endif
