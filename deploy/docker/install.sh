#!/bin/sh
# install.sh NAME: while an image is built, makes /opt/quire, a virtual environment of the packages that NAME.txt pins,
# without pip. Nothing is fetched.
set -eu
python3 -m venv --without-pip /opt/quire
PYTHONPATH=$(echo /pip/pip-*.whl) python3 -m pip --python /opt/quire/bin/python --isolated --disable-pip-version-check \
  install --quiet --no-cache-dir --root-user-action ignore \
  --no-index --find-links /wheelhouse --no-deps --require-hashes -r "/requirements/$1.txt"
