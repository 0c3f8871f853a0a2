#!/bin/sh
# package.sh: while an image is built, installs Quire's own wheel as for /opt/quire, but under /package, so that an image
# gets it in a layer of its own: a change of Quire leaves the layer of its dependencies as it was.
set -eu
PYTHONPATH=$(echo /pip/pip-*.whl) python3 -m pip --python /opt/quire/bin/python --isolated --disable-pip-version-check \
  install --quiet --no-cache-dir --root-user-action ignore --no-index --no-deps --no-warn-script-location --root /package /wheel/*.whl
